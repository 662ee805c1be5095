import torch
from torch import nn
from torch.distributions import Categorical

device = "cuda" if torch.cuda.is_available() else "cpu"


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(4, 32)
        self.affine2 = nn.Linear(32, 2)
        self.saved_log_probs = []
        self.entropies = []
        self.rewards = []

    def forward(self, x):
        return torch.softmax(self.affine2(torch.relu(self.affine1(x))), dim=-1)


policy = Policy().to(device)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)


def select_action(state):
    m = Categorical(policy(state))
    action = m.sample()
    policy.saved_log_probs.append(m.log_prob(action))
    policy.entropies.append(m.entropy())  # leak: holder=entropies|policy kind=graph lint=accumulate
    return action.item()


def finish_episode(gamma=0.99):
    R, returns = 0, []
    for r in policy.rewards[::-1]:
        R = r + gamma * R
        returns.insert(0, R)
    loss = sum(-log_prob * R for log_prob, R in zip(policy.saved_log_probs, returns))
    loss = loss - 0.01 * sum(policy.entropies[-len(returns) :])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    del policy.rewards[:]
    del policy.saved_log_probs[:]


for episode in range(18):
    state = torch.randn(4, device=device)
    for t in range(6):
        action = select_action(state)
        state = torch.randn(4, device=device)
        policy.rewards.append(1.0 if action == int(state.sum().item() > 0) else 0.0)
    finish_episode()
