"""NumPy with device tensors: from_numpy, asarray, .cpu().numpy(), item(), NumPy scalars, and the error of .numpy() on
a GPU tensor."""

import numpy as np
import torch

rng = np.random.default_rng(0)
device = torch.device("cuda")
array = rng.standard_normal((4, 3)).astype(np.float32)
t = torch.from_numpy(array).to(device).clone()
t += 1
print(array.sum() != t.sum().item(), t.sum().item())
same = torch.from_numpy(array)
same.add_(1)
print(array.sum(), torch.tensor(array).cuda().sum().item(), torch.asarray(array, device=device).mean().item())
print(torch.as_tensor(array, device="cuda").add(np.float32(2)).sum().item(), (t * np.float64(0.5)).dtype)
print(np.asarray(t.cpu()).sum(), np.array(t.tolist()).shape, t.detach().cpu().numpy().argmax())
try:
    t.numpy()
    print("memory: a CPU gives an array")
except TypeError as e:
    print("memory:", e)
try:
    np.asarray(t)
    print("memory: a CPU gives an array")
except TypeError as e:
    print("memory:", str(e)[:40])
index = rng.integers(0, 4, 2)
print(
    t[index].sum().item(),
    t[torch.from_numpy(index)].sum().item(),
    t[index.tolist()].sum().item(),
    t[:, np.newaxis].shape,
)
mask = array > 0
print(t[torch.from_numpy(mask)].sum().item(), t[torch.from_numpy(mask).cuda()].sum().item())
t[0] = torch.tensor(5.0)
t[1, :2] = torch.from_numpy(array[0, :2]).to(device)
t[t > 4] = 0
t[[0, 1]] = t[[1, 0]]
print(t.sum().item(), t.max().item(), t.numel(), len(t), [row.sum().item() for row in t])
t.clamp_(-1, 1).mul_(2).sub_(0.5).t_().fill_diagonal_(3.0)
t.index_fill_(0, torch.tensor([0], device=device), 0.25)
t.masked_fill_(t < 0, 0.0).unsqueeze_(0).squeeze_(0)
print(t.sum().item(), t.is_contiguous(), t.stride())
total, running = 0.0, torch.zeros(1, device=device)
for row in t:
    total += row.mean()
    running += row.mean().item()
print(float(total), running.item(), total.device.type == device.type, torch.is_tensor(total))
print(
    sum(torch.ones(2, device=device)).item(),
    max(torch.tensor([1.0, 3.0], device=device)).item(),
    (t.sum() > 1).item(),
    round(t[0, 0].item(), 3),
)
labels = torch.tensor([0, 2, 1], device=device)
print(
    labels.cpu().numpy().tolist(),
    np.bincount(labels.cpu(), minlength=3),
    torch.nn.functional.one_hot(labels).sum().item(),
)
x, y = torch.meshgrid(torch.arange(3, device=device), torch.arange(2, device=device), indexing="ij")
print(
    (x * y).sum().item(),
    torch.stack([x, y]).float().std().item(),
    torch.quantile(x.float(), 0.5).item(),
    torch.histc(x.float(), 3).tolist(),
)
print(
    torch.where(x > 0, x, torch.zeros_like(x)).sum().item(),
    torch.where(x > 0, 1.0, 0.0).sum().item(),
    torch.nonzero(x).shape,
)
print(
    torch.linalg.svdvals(torch.eye(3, device=device)).sum().item(),
    torch.linalg.solve(torch.eye(2, device=device) * 2, torch.ones(2, device=device)).tolist(),
)
print(
    torch.einsum("ij,kj->ik", x.float(), x.float()).sum().item(),
    torch.block_diag(x, y).shape,
    torch.roll(x, 1, 0).tolist(),
)
