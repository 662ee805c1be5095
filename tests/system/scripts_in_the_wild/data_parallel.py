"""nn.DataParallel as in tutorials: the model is wrapped if there are several GPUs, and the loss is averaged."""

import torch
import torch.nn as nn

torch.manual_seed(0)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 2)
        self.bn = nn.BatchNorm1d(2)

    def forward(self, input):
        assert input.device == self.fc.weight.device
        return self.bn(self.fc(input))


model = Model()
if torch.cuda.device_count() > 1:  # as in the tutorial
    print("memory: let's use", torch.cuda.device_count(), "GPUs!")
    model = nn.DataParallel(model)
else:
    model = nn.DataParallel(model, device_ids=[0]) if torch.cuda.is_available() else model
model.to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    inputs, labels = torch.randn(8, 5).to(device), torch.randn(8, 2).to(device)
    predictions = model(inputs)
    loss = (predictions - labels).pow(2).mean()
    optimizer.zero_grad()
    loss.mean().backward()
    optimizer.step()
    print(tuple(predictions.shape), loss.item())
module = model.module if hasattr(model, "module") else model
print(module.fc.weight.sum().item())
