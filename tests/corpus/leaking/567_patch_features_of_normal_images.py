import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

backbone = nn.Sequential(nn.Conv2d(3, 6, 3, stride=2), nn.ReLU(), nn.Conv2d(6, 8, 3), nn.ReLU()).to(device)
backbone.eval()

outputs = []


def hook(module, input, output):
    outputs.append(output)  # leak: holder=outputs kind=graph lint=hook-append


backbone[1].register_forward_hook(hook)
backbone[3].register_forward_hook(hook)

train_dataloader = DataLoader(TensorDataset(torch.rand(60, 3, 12, 12)), batch_size=3)
mean, count = torch.zeros(8, device=device), 0
for (x,) in train_dataloader:
    backbone(x.to(device))  # lint: no-grad
    deepest = outputs[-1].detach()
    mean += deepest.mean(dim=(0, 2, 3))
    count += 1
print("mean of the deepest features", (mean / count).tolist())
