"""DistributedDataParallel with one process and gloo, as in a debug run without a launcher, with collectives on the
device."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "0")
local_rank = int(os.environ.get("LOCAL_RANK", 0))
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
torch.cuda.set_device(local_rank)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 1)).cuda(local_rank)
model = nn.SyncBatchNorm.convert_sync_batchnorm(model) if os.environ.get("SYNC") else model
model = DDP(model, device_ids=[local_rank], output_device=local_rank)
data = TensorDataset(torch.randn(32, 6), torch.randn(32, 1))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler, pin_memory=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for i, (x, y) in enumerate(loader):
        x, y = x.cuda(local_rank, non_blocking=True), y.cuda(local_rank, non_blocking=True)
        if i % 2:
            with model.no_sync():
                (model(x) - y).pow(2).mean().backward()
            continue
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total, op=dist.ReduceOp.SUM)
        dist.barrier()
        print(epoch, i, total.item() / dist.get_world_size())
gathered = [torch.zeros(2, device="cuda") for _ in range(dist.get_world_size())]
dist.all_gather(gathered, torch.ones(2, device="cuda"))
dist.broadcast(gathered[0], src=0)
objects = [None]
dist.all_gather_object(objects, {"loss": 1.0})
print(gathered[0].tolist(), objects, sum(p.sum().item() for p in model.parameters()))
if dist.get_rank() == 0:
    print(sorted(model.module.state_dict())[:2])
dist.destroy_process_group()
