import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class MyBatchNorm(nn.Module):
    def __init__(self, num_features, momentum=0.1, eps=1e-5):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(num_features))
        self.beta = nn.Parameter(torch.zeros(num_features))
        self.moving_mean = torch.zeros(num_features, device=device)
        self.moving_var = torch.ones(num_features, device=device)
        self.momentum, self.eps = momentum, eps

    def forward(self, x):
        if not self.training:
            return self.gamma * (x - self.moving_mean) / torch.sqrt(self.moving_var + self.eps) + self.beta
        mean, var = x.mean(0), x.var(0, unbiased=False)
        self.moving_mean = (1 - self.momentum) * self.moving_mean + self.momentum * mean  # leak: holder=moving_mean|moving_var kind=graph lint=accumulate
        self.moving_var = (1 - self.momentum) * self.moving_var + self.momentum * var  # also: lint=accumulate
        return self.gamma * (x - mean) / torch.sqrt(var + self.eps) + self.beta


model = nn.Sequential(nn.Linear(7, 14), MyBatchNorm(14), nn.ReLU(), nn.Linear(14, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(22):
    x = torch.randn(16, 7, device=device)
    loss = (model(x) - x.max(1, keepdim=True).values).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
