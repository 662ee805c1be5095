"""CUDA_VISIBLE_DEVICES set at the top, set_device, device_count loops, peer access, cuDNN flags, generators,
torch.cuda.device."""

import os

os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
os.environ["CUDA_VISIBLE_DEVICES"] = "0"

import torch

gpu = 0
torch.cuda.set_device(gpu)
torch.cuda.init()
print(
    "memory:",
    torch.cuda.device_count(),
    [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
)
print("memory:", torch.cuda.current_device(), torch.cuda.is_initialized(), torch.cuda.get_arch_list())
device = torch.device(f"cuda:{gpu}")
torch.manual_seed(3)
x = torch.randn(4, 4, device=device)
with torch.cuda.device(gpu):
    y = x.cuda() @ torch.randn(4, 4).cuda(gpu)
print(y.sum().item(), y.is_cuda == x.is_cuda, x.get_device() in (-1, 0), y.device == device)
print(x.to(device) is x, x.cuda() is x, x.to(device, torch.float32) is x, x.to(device, copy=True) is x)
torch.backends.cudnn.enabled = True
torch.set_float32_matmul_precision("high")
torch.use_deterministic_algorithms(True, warn_only=True)
print((x @ y).sum().item())
torch.use_deterministic_algorithms(False)
torch.cuda.set_per_process_memory_fraction(0.9, 0)
torch.cuda.reset_max_memory_allocated()
state = torch.cuda.get_rng_state()
torch.cuda.set_rng_state(state)
with torch.random.fork_rng(devices=[0]):
    torch.manual_seed(0)
    a = torch.rand(2, device=device)
b = torch.rand(2, device=device)
print(a.tolist(), b.tolist())
torch.cuda.nvtx.range_push("step")
torch.cuda.nvtx.range_pop()
print(
    "memory:",
    torch.cuda.utilization() if hasattr(torch.cuda, "utilization") else 0,
    torch.cuda.can_device_access_peer(0, 0),
)
ten = torch.cuda.FloatTensor(2, 2).fill_(1)
print(
    ten.sum().item(),
    ten.type() == x.type(),
    isinstance(ten, torch.cuda.FloatTensor),
    torch.cuda.LongTensor([1, 2]).tolist(),
)
print(torch.tensor([1.0]).cuda().type(torch.float16).dtype, x.type(torch.cuda.FloatTensor).dtype)
parameter = torch.nn.Parameter(torch.ones(2, device=device))
plain = torch.nn.Linear(2, 2)
plain.cuda()
print(
    parameter.is_leaf,
    plain.weight.is_leaf,
    all(p.is_cuda == x.is_cuda for p in plain.parameters()),
    (plain(x[:, :2]) * parameter).sum().item(),
)
print(
    "memory:",
    torch.backends.cuda.is_built(),
    torch.backends.cudnn.is_available(),
    torch.backends.cudnn.version(),
)
