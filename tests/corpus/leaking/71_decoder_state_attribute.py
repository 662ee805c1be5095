import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class StatefulDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(5, 14)
        self.readout = nn.Linear(14, 5)
        self.state = torch.zeros(3, 14, device=device)

    def forward(self, x):
        self.state = self.cell(x, self.state)  # leak: holder=state kind=graph lint=hidden-state
        return self.readout(self.state)


model = StatefulDecoder().to(device)
optimizer = torch.optim.SGD(model.readout.parameters(), lr=0.05)
for _ in range(18):
    x = torch.randn(3, 5, device=device)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward(inputs=list(model.readout.parameters()), retain_graph=True)  # lint: retain-graph
    optimizer.step()
