import contextlib

import torch
from torch import nn


class Accelerator:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def prepare(self, *things):
        return tuple(thing.to(self.device) if isinstance(thing, nn.Module) else thing for thing in things)

    @contextlib.contextmanager
    def accumulate(self, model):
        yield

    def backward(self, loss):
        loss.backward()


accelerator = Accelerator()
model = nn.Sequential(nn.Linear(12, 24), nn.SiLU(), nn.Linear(24, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
train_dataloader = [torch.randn(6, 12) for _ in range(20)]
model, optimizer, train_dataloader = accelerator.prepare(model, optimizer, train_dataloader)
loss_sum = 0
for step, batch in enumerate(train_dataloader):
    with accelerator.accumulate(model):
        outputs = model(batch.to(accelerator.device))
        loss = outputs.logsumexp(-1).mean()
        loss_sum += loss  # leak: holder=loss_sum kind=graph lint=accumulate
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
print(step, float(loss_sum))
