import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
        self.log_probs = []

    def forward(self, x):
        return self.net(x).log_softmax(-1)


policy = Policy().to(device)
policy.eval()
for episode in range(10):
    state = torch.randn(1, 4, device=device)
    for _ in range(5):
        log_prob = policy(state)  # lint: no-grad
        policy.log_probs.append(log_prob[0, log_prob.argmax().item()])  # leak: holder=log_probs kind=graph
        state = torch.randn(1, 4, device=device)
