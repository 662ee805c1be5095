"""A checkpoint saved on the GPU and loaded in every way: map_location as text, function or device, weights_only, RNG
states."""

import copy
import io
import os
import tempfile

import torch
import torch.nn as nn

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
folder = tempfile.mkdtemp()
path = os.path.join(folder, "checkpoint.pth.tar")


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    return model, optimizer, scheduler


def step(model, optimizer, scheduler):
    x = torch.randn(8, 6, device=device)
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    scheduler.step()
    return loss.item()


model, optimizer, scheduler = build()
for _ in range(2):
    print(step(model, optimizer, scheduler))
torch.save(
    {
        "epoch": 2, "state_dict": model.state_dict(), "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(), "rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state_all(), "best": torch.tensor(0.5, device=device),
    },
    path,
)  # fmt: skip
print("went on", step(model, optimizer, scheduler))

for where in (
    None,
    "cuda:0",
    device,
    "cpu",
    lambda storage, loc: storage,
    lambda storage, loc: storage.cuda(0),
    {"cuda:0": "cuda:0"},
):
    checkpoint = torch.load(path) if where is None else torch.load(path, map_location=where)
    model, optimizer, scheduler = build()
    model.load_state_dict(checkpoint["state_dict"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    scheduler.load_state_dict(checkpoint["scheduler"])
    torch.set_rng_state(checkpoint["rng"].cpu())
    print(
        "resumed",
        step(model, optimizer, scheduler),
        optimizer.state[model[0].weight]["exp_avg"].device.type == device.type,
    )

torch.save(model, os.path.join(folder, "whole.pt"))
whole = torch.load(os.path.join(folder, "whole.pt"), weights_only=False)
whole.eval()
model.eval()
x = torch.ones(2, 6, device=device)
print(torch.equal(whole(x), model(x)), next(whole.parameters()).device.type == device.type)
buffer = io.BytesIO()
torch.save(model.state_dict(), buffer)
buffer.seek(0)
fresh = copy.deepcopy(model)
fresh.load_state_dict(torch.load(buffer, map_location=torch.device("cpu"), weights_only=True), assign=False)
print(fresh(x).sum().item(), next(fresh.parameters()).device.type == device.type)
moved = fresh.to("cpu")
print(
    moved(x.cpu()).sum().item(),
    next(moved.parameters()).is_cuda,
    moved.double()(x.cpu().double()).sum().item(),
)
