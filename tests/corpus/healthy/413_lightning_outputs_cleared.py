import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class LitModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        self.training_step_outputs, self.validation_step_outputs = [], []

    def training_step(self, batch):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.training_step_outputs.append(loss.detach())
        return loss

    def validation_step(self, batch):
        self.validation_step_outputs.append(self.net(batch[0]))

    def on_train_epoch_end(self):
        mean = torch.stack(self.training_step_outputs).mean().item()
        self.training_step_outputs.clear()
        return mean

    def on_validation_epoch_end(self):
        spread = torch.cat(self.validation_step_outputs).std().item()
        self.validation_step_outputs.clear()
        return spread


def batch():
    return torch.randn(6, 8, device=device), torch.randint(0, 2, (6,), device=device)


module = LitModel().to(device)
optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
for epoch in range(8):
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
    print(module.on_train_epoch_end(), module.on_validation_epoch_end())
