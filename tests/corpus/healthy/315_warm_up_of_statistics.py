import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class ActNorm(nn.Module):
    """Computes its scale from the first eight batches."""

    def __init__(self, batches=8):
        super().__init__()
        self.batches, self.seen, self.scale = batches, [], None

    def forward(self, x):
        if self.scale is None:
            self.seen.append(x.detach())
            if len(self.seen) == self.batches:
                self.scale = torch.cat(self.seen).std(0)
                self.seen = []
            return x
        return x / self.scale


norm, head = ActNorm(), nn.Linear(8, 1).to(device)
body = nn.Linear(8, 8).to(device)
optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()])
for step in range(30):
    loss = head(norm(body(torch.randn(6, 8, device=device)))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
