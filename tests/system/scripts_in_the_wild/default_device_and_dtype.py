"""Tensors created without a device: set_default_device, `with torch.device(...)`, set_default_dtype,
set_default_tensor_type."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_default_device("cuda")
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.MultiheadAttention(8, 2).out_proj, nn.Linear(8, 2))
x, y = torch.randn(6, 4), torch.arange(6) % 2
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    print(loss.item())
kind = torch.get_default_device().type
made = [
    torch.zeros(2), torch.ones(2), torch.empty(2), torch.full((2,), 1.0), torch.eye(2), torch.linspace(0, 1, 3),
    torch.tensor([1, 2]), torch.as_tensor([1.0]), torch.rand(2), torch.randperm(4), torch.randint(3, (2,)), torch.tril_indices(2, 2),
    torch.zeros_like(x), x.new_ones(2), torch.normal(torch.zeros(2), 1.0), torch.scalar_tensor(2.0), torch.logspace(0, 1, 2),
    torch.hann_window(4), torch.from_numpy(__import__("numpy").ones(2)).to(kind), torch.complex(torch.ones(2), torch.ones(2)),
]  # fmt: skip
print([t.device.type == kind for t in made], [t.abs().sum().item() for t in made if t is not made[2]])
print(torch.zeros(2, device="cpu").device.type, torch.Generator(device="cuda").device.type == kind)
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(torch.randn(8, 4)),
    batch_size=4,
    shuffle=True,
    generator=torch.Generator(device="cuda").manual_seed(0),
)
print([b[0].device.type == kind for b in loader])
torch.set_default_device("cpu")

with torch.device("cuda"):
    inner = nn.LSTM(3, 4)
    z = torch.randn(2, 1, 3)
print(inner(z)[0].sum().item(), inner.weight_ih_l0.device.type == kind, torch.zeros(1).device.type)

torch.set_default_dtype(torch.float64)
d = torch.rand(3, device="cuda")
print(d.dtype, d.sum().item(), nn.Linear(2, 2).cuda().weight.dtype, (d * 2.5).dtype, torch.tensor(1.5).dtype)
torch.set_default_dtype(torch.float32)
skeleton = nn.Linear(3, 3, device="meta").to_empty(device="cuda")
nn.init.ones_(skeleton.weight)
nn.init.zeros_(skeleton.bias)
print(skeleton(torch.ones(1, 3, device="cuda")).sum().item(), skeleton.weight.device.type == kind)
