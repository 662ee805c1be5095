import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Encoder(nn.Module):
    def __init__(self, width=12, debug=True):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(2)])
        self.debug = debug
        self.calls = 0
        self.intermediate = {}

    def forward(self, x):
        self.calls += 1
        for i, layer in enumerate(self.layers):
            x = torch.relu(layer(x))
            if self.debug:
                self.intermediate[f"call{self.calls}_layer{i}"] = x  # leak: holder=intermediate kind=graph lint=accumulate
        return x


encoder = Encoder().to(device)
head = nn.Linear(12, 1).to(device)
optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()])
for step in range(20):
    loss = head(encoder(torch.randn(6, 12, device=device))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
