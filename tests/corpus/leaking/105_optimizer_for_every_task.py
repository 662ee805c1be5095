import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class ContinualLearner:
    def __init__(self):
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU()).to(device)
        self.heads = []
        self.optimizers = []

    def learn(self, task):
        head = nn.Linear(16, 2).to(device)
        optimizer = torch.optim.Adam(head.parameters(), lr=1e-2)
        self.optimizers.append(optimizer)  # leak: holder=optimizers|heads kind=tensor
        self.heads.append(head)  # also:
        for _ in range(2):
            x = torch.randn(12, 8, device=device)
            loss = nn.functional.cross_entropy(head(self.backbone(x).detach()), torch.randint(0, 2, (12,), device=device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


learner = ContinualLearner()
for task in range(18):
    learner.learn(task)
