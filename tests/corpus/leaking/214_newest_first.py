import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Dashboard:
    panels = {"reconstruction": []}

    @classmethod
    def show(cls, name, image):
        cls.panels[name].insert(0, image)  # leak: holder=panels kind=graph


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(16, 4), nn.Linear(4, 16)

    def forward(self, x):
        return self.decode(torch.relu(self.encode(x)))


model = AutoEncoder().to(device)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(20):
    image = torch.rand(5, 16, device=device)
    reconstruction = model(image)
    loss = (reconstruction - image).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    Dashboard.show("reconstruction", reconstruction[0])  # also: lint=accumulate
