"""The usual multi-GPU recipe: mp.spawn over device_count, NCCL, DistributedSampler, and DDP with device_ids."""

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # evaluated at import, in every process


def main_worker(gpu, n_gpus, port):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    dist.init_process_group(backend="nccl", init_method="env://", world_size=n_gpus, rank=gpu)
    torch.cuda.set_device(gpu)
    torch.manual_seed(0)
    model = nn.Linear(4, 1).cuda(gpu)
    model = nn.parallel.DistributedDataParallel(model, device_ids=[gpu])
    data = TensorDataset(torch.arange(64.0).view(16, 4) / 64, torch.ones(16, 1))
    sampler = DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, batch_size=4, shuffle=False, pin_memory=True, num_workers=0, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        x, y = x.cuda(gpu, non_blocking=True), y.cuda(gpu, non_blocking=True)
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach()
        dist.all_reduce(total)
        dist.barrier(device_ids=[gpu])
        if dist.get_rank() == 0:
            print(gpu, total.item(), x.device.type == device.type, flush=True)
    dist.destroy_process_group()


def main():
    n_gpus = torch.cuda.device_count()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(main_worker, nprocs=n_gpus, args=(n_gpus, port))
    print("memory:", torch.zeros(1024, device=device).device)


if __name__ == "__main__":
    main()
