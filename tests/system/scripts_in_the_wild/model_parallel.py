"""The model-parallel tutorial: layers on cuda:0 and cuda:1, batches split for a pipeline, gradients across devices."""

import torch
import torch.nn as nn
import torch.optim as optim

torch.manual_seed(0)
dev0, dev1 = torch.device("cuda:0"), torch.device("cuda:1")


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(10, 10).to("cuda:0")
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(10, 5).to("cuda:1")

    def forward(self, x):
        x = self.relu(self.net1(x.to("cuda:0")))
        return self.net2(x.to("cuda:1"))


class Pipelined(ToyModel):
    def forward(self, x, split_size=10):
        splits = iter(x.split(split_size, dim=0))
        s_prev = self.relu(self.net1(next(splits).to(dev0))).to(dev1)
        ret = []
        for s_next in splits:
            ret.append(self.net2(s_prev))
            s_prev = self.relu(self.net1(s_next.to(dev0))).to(dev1)
        ret.append(self.net2(s_prev))
        return torch.cat(ret)


for kind in (ToyModel, Pipelined):
    model = kind()
    loss_fn = nn.MSELoss()
    optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        outputs = model(torch.randn(20, 10))
        labels = torch.randn(20, 5).to("cuda:1")
        loss = loss_fn(outputs, labels)
        loss.backward()
        optimizer.step()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        print(
            kind.__name__,
            loss.item(),
            norm.item(),
            model.net1.weight.grad.device == dev0,
            outputs.device == dev1,
        )
print("memory:", torch.cuda.memory_allocated(0), torch.cuda.memory_allocated(1), torch.cuda.device_count())
with torch.cuda.device(1):
    here = torch.ones(3, device="cuda")
    print(here.device == dev1, here.get_device() in (1, -1), torch.ones(2).cuda().device == dev1)
torch.cuda.set_device(dev1)
print(torch.zeros(1).cuda().device == dev1, torch.zeros(1, device="cuda").to(0).device == dev0)
torch.cuda.set_device(0)
copied = torch.zeros(3, device=dev1)
copied.copy_(torch.arange(3.0, device=dev0))
print(
    copied.tolist(),
    (copied.to(dev0) + torch.ones(3, device=dev0)).sum().item(),
    copied.to("cpu").sum().item(),
)
