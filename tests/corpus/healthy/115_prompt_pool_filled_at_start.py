import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class LazyAdapters(nn.Module):
    """Creates the adapter of a language when that language first occurs."""

    def __init__(self, width=10):
        super().__init__()
        self.width = width
        self.adapters = nn.ModuleDict()
        self.head = nn.Linear(width, 2)

    def forward(self, x, language):
        if language not in self.adapters:
            self.adapters[language] = nn.Linear(self.width, self.width).to(x.device)
        return self.head(x + self.adapters[language](x))


languages = ["de", "fr", "ko", "it", "pl"]
model = LazyAdapters().to(device)
optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
for step in range(30):
    loss = model(torch.randn(6, 10, device=device), languages[step % 5]).square().mean()
    optimizer.zero_grad()
    model.zero_grad()
    loss.backward()
    optimizer.step()
