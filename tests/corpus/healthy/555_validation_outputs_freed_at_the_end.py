import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1))
        self.validation_outputs = []

    def training_step(self, batch):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    @torch.no_grad()
    def validation_step(self, batch):
        predicted = self.net(batch[0]).argmax(1)
        self.validation_outputs.append({"inter": (predicted & batch[1]).sum(), "union": (predicted | batch[1]).sum()})

    def on_validation_epoch_end(self):
        inter = torch.stack([o["inter"] for o in self.validation_outputs]).sum()
        union = torch.stack([o["union"] for o in self.validation_outputs]).sum()
        self.validation_outputs.clear()
        return (inter / union.clamp(min=1)).item()


def batches(n):
    for _ in range(n):
        yield torch.rand(2, 1, 8, 8, device=device), torch.randint(0, 2, (2, 8, 8), device=device)


module = Segmenter().to(device)
optimizer = torch.optim.Adam(module.parameters())
ious = []
for epoch in range(8):
    for batch in batches(5):
        loss = module.training_step(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for batch in batches(4):
        module.validation_step(batch)
    ious.append(module.on_validation_epoch_end())
