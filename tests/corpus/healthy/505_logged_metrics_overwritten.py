import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(10, 2)
        self.logged_metrics, self.callback_metrics = {}, {}

    def log(self, name, value, on_step=True, on_epoch=False):
        if on_step:
            self.logged_metrics[name] = value
        if on_epoch:
            self.callback_metrics[name] = value.detach()

    def training_step(self, batch):
        x, y = batch
        loss = nn.functional.cross_entropy(self.layer(x), y)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss


module = Module().to(device)
optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
for step in range(30):
    loss = module.training_step((torch.randn(6, 10, device=device), torch.randint(0, 2, (6,), device=device)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print({name: round(float(value), 4) for name, value in module.logged_metrics.items()})
