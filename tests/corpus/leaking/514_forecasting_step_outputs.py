import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class BaseModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.training_step_outputs = []

    def step(self, x, y):
        prediction = self(x)
        loss = self.loss(prediction, y)
        log = {"loss": loss, "n_samples": x.size(0), "prediction": prediction}
        return log, prediction

    def training_step(self, batch, batch_idx):
        x, y = batch
        log, _ = self.step(x, y)
        self.training_step_outputs.append(log)  # leak: holder=training_step_outputs kind=graph lint=accumulate
        return log


class NBeats(BaseModel):
    def __init__(self, backcast=12, horizon=3):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(backcast, 32), nn.ReLU(), nn.Linear(32, horizon))

    def forward(self, x):
        return self.block(x)

    def loss(self, prediction, target):
        return (prediction - target).abs().div(target.abs() + 1).mean()


model = NBeats().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for batch_idx in range(26):
    series = torch.cumsum(torch.randn(8, 15, device=device), dim=1)
    log = model.training_step((series[:, :12], series[:, 12:]), batch_idx)
    optimizer.zero_grad()
    log["loss"].backward()
    optimizer.step()
