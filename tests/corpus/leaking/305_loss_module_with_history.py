import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class FocalLoss(nn.Module):
    def __init__(self, gamma=2.0):
        super().__init__()
        self.gamma = gamma
        self.history = []

    def forward(self, logits, target):
        ce = nn.functional.cross_entropy(logits, target, reduction="none")
        loss = ((1 - torch.exp(-ce)) ** self.gamma * ce).mean()
        self.history.append(loss)  # leak: holder=history kind=graph lint=accumulate
        return loss


criterion = FocalLoss()
model = nn.Sequential(nn.Linear(7, 14), nn.ReLU(), nn.Linear(14, 3)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(22):
    loss = criterion(model(torch.randn(8, 7, device=device)), torch.randint(0, 3, (8,), device=device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
