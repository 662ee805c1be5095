import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class LitModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        self.validation_step_outputs = []

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch):
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def validation_step(self, batch):
        x, y = batch
        preds = self(x)
        self.validation_step_outputs.append(preds)  # leak: holder=validation_step_outputs kind=tensor
        return nn.functional.cross_entropy(preds, y)

    def on_validation_epoch_end(self):
        all_preds = torch.cat(self.validation_step_outputs)
        print("mean", all_preds.mean().item())


def batch():
    return torch.randn(6, 8, device=device), torch.randint(0, 2, (6,), device=device)


module = LitModel().to(device)
optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
for epoch in range(10):
    module.train()
    for _ in range(4):
        loss = module.training_step(batch())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    module.eval()
    with torch.no_grad():
        for _ in range(3):
            module.validation_step(batch())
    module.on_validation_epoch_end()
