import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class LitRegressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(9, 18), nn.GELU(), nn.Linear(18, 1))
        self.training_step_outputs = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.body(x), y)
        self.training_step_outputs.append({"loss": loss, "size": len(x)})  # leak: holder=training_step_outputs kind=graph lint=accumulate
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Fabric:
    def fit(self, module, batches):
        optimizer = module.configure_optimizers()
        for index, batch in enumerate(batches):
            loss = module.training_step(batch, index)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


batches = [(torch.randn(6, 9, device=device), torch.randn(6, 1, device=device)) for _ in range(22)]
Fabric().fit(LitRegressor().to(device), batches)
