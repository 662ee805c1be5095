import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class SegmentModel(nn.Module):
    def __init__(self, layers=2, width=12):
        super().__init__()
        self.mix = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(width, width)

    def forward(self, x, mems):
        new_mems = []
        for layer, mem in zip(self.mix, mems):
            context = x if mem is None else torch.cat([mem, x], dim=1)
            new_mems.append(context)
            x = torch.tanh(layer(context))[:, -x.shape[1] :]
        return self.head(x.detach()), new_mems


model = SegmentModel().to(device)
optimizer = torch.optim.Adam(model.head.parameters())
mems = [None, None]
for segment in range(18):
    x = torch.randn(2, 3, 12, device=device)
    prediction, mems = model(x, mems)  # leak: holder=mems kind=graph lint=hidden-state
    loss = (prediction - x.roll(1, 1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
