import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class AffineFlow(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.net = nn.Linear(width // 2, width)
        self.total_log_det = 0.0

    def forward(self, x):
        a, b = x.chunk(2, dim=1)
        scale, shift = self.net(a).chunk(2, dim=1)
        log_det = torch.tanh(scale).sum(1)
        self.total_log_det = self.total_log_det + log_det.mean()  # leak: holder=total_log_det kind=graph lint=accumulate
        return torch.cat([a, b * torch.tanh(scale).exp() + shift], dim=1), log_det


flow = AffineFlow().to(device)
optimizer = torch.optim.Adam(flow.parameters(), lr=1e-3)
for step in range(20):
    z, log_det = flow(torch.randn(16, 6, device=device))
    loss = (0.5 * z.square().sum(1) - log_det).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
