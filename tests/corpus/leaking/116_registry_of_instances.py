import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Batch:
    instances = []

    def __init__(self, inputs, targets):
        self.inputs = inputs.to(device)
        self.targets = targets.to(device)
        self.instances.append(self)  # leak: holder=instances kind=tensor

    def __len__(self):
        return len(self.inputs)


def make_batch():
    inputs = torch.randn(12, 6)
    return Batch(inputs, inputs.sum(1, keepdim=True))


model = nn.Linear(6, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
seen = 0
for step in range(24):
    batch = make_batch()
    loss = nn.functional.mse_loss(model(batch.inputs), batch.targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    seen += len(batch)
