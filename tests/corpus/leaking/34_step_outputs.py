import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class LitLike(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 2))
        self.training_step_outputs = []

    def training_step(self, batch, batch_index):
        x, y = batch
        preds = self.net(x)
        loss = nn.functional.cross_entropy(preds, y)
        self.training_step_outputs.append({"loss": loss, "preds": preds})  # leak: holder=training_step_outputs kind=graph lint=accumulate
        return loss

    def on_train_epoch_end(self):
        mean = torch.stack([o["loss"].detach() for o in self.training_step_outputs]).mean()
        print("epoch", mean.item())  # and never cleared


module = LitLike().to(device)
optimizer = torch.optim.Adam(module.parameters())
for epoch in range(2):
    for i in range(12):
        batch = torch.randn(6, 10, device=device), torch.randint(0, 2, (6,), device=device)
        loss = module.training_step(batch, i)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    module.on_train_epoch_end()
