import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class CenterLoss(nn.Module):
    def __init__(self, width, momentum=0.1):
        super().__init__()
        self.momentum = momentum
        self.center = torch.zeros(width, device=device)

    def forward(self, features):
        loss = (features - self.center.detach()).square().mean()
        self.center = (1 - self.momentum) * self.center + self.momentum * features.mean(0)  # leak: holder=center kind=graph lint=accumulate
        return loss


net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4)).to(device)
center_loss = CenterLoss(4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(20):
    loss = center_loss(net(torch.randn(9, 6, device=device)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
