"""Colab cells: call nvidia-smi, display a tensor, and print memory use in all common ways."""

import gc
import shutil
import subprocess

import torch

try:
    print("memory:", subprocess.run(["nvidia-smi"], capture_output=True, text=True, check=True).stdout[:20])
except (FileNotFoundError, subprocess.CalledProcessError):
    print("nvidia-smi is absent:", shutil.which("nvidia-smi"))

assert torch.cuda.is_available(), "Runtime > Change runtime type > GPU"
print("memory:", torch.cuda.get_device_name(0), torch.cuda.get_device_capability(), torch.version.cuda)
print("memory:", torch.cuda.get_device_properties(0))
print("memory:", torch.cuda.get_device_properties("cuda").total_memory / 1024**3)
torch.manual_seed(0)
a = torch.rand(3, 2).cuda()
b = torch.rand(2, 3, device="cuda:0")
print((a @ b).cpu())
print((a @ b).sum().item(), a.shape, a.dtype, a.requires_grad)
print("memory:", a[0], a.device, repr(a[0]), str(a[0]))
print(f"{a[0, 0]:.6f}", a[0].tolist(), float(a[1, 1]), int(a.sum()), bool(a.sum() > 0))
big = torch.zeros(256, 1024, 256, device="cuda")
print(
    "memory: allocated", torch.cuda.memory_allocated() / 1024**2, torch.cuda.max_memory_allocated(0) / 2**20
)
print("memory: reserved", torch.cuda.memory_reserved() / 2**20, torch.cuda.max_memory_reserved() / 2**20)
print("memory: info", torch.cuda.mem_get_info(), torch.cuda.mem_get_info(0))
held = torch.cuda.memory_allocated()
del big
gc.collect()
print(torch.cuda.memory_allocated() <= held)
print("memory: cached", torch.cuda.memory_reserved())
torch.cuda.empty_cache()
print("memory:", len(str(torch.cuda.memory_summary(device=None, abbreviated=True)).splitlines()))
print("memory:", torch.cuda.memory_stats().get("allocated_bytes.all.peak"), len(torch.cuda.memory_snapshot()))
torch.cuda.reset_peak_memory_stats()
print("memory:", len(str(torch.cuda.list_gpu_processes())))
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record()
c = a @ b
end.record()
torch.cuda.synchronize()
print(start.elapsed_time(end) >= 0)
with torch.profiler.profile(
    activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
) as prof:
    (c * 2).sum()
print(len(prof.key_averages()) > 0)
