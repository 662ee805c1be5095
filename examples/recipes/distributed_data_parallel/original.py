"""Train with `mp.spawn` and DistributedDataParallel. The sampler uses one sample twice. The program does not call `set_epoch`,
so the samples have the same order in every epoch.

legroom run --gpu 64MiB,64MiB examples/recipes/distributed_data_parallel/original.py
"""

import sys

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

PORT = sys.argv[1] if len(sys.argv) > 1 else 2568


def main():
    n_gpus = torch.cuda.device_count()
    torch.multiprocessing.spawn(main_worker, nprocs=n_gpus, args=(n_gpus,))


def main_worker(gpu, n_gpus):
    batch_size = int(128 / n_gpus)
    torch.distributed.init_process_group(
        backend="nccl", init_method=f"tcp://127.0.0.1:{PORT}", world_size=n_gpus, rank=gpu
    )
    digits = load_digits()
    images, labels = torch.tensor(digits.data).float() / 16, torch.tensor(digits.target)
    train_data = torch.utils.data.TensorDataset(images, labels, torch.arange(1797))
    train_sampler = torch.utils.data.distributed.DistributedSampler(train_data)
    trainloader = torch.utils.data.DataLoader(
        train_data,
        batch_size=batch_size,
        shuffle=False,
        pin_memory=True,
        num_workers=0,
        sampler=train_sampler,
    )
    torch.cuda.set_device(gpu)
    model = nn.Linear(64, 10).cuda(gpu)
    model = nn.parallel.DistributedDataParallel(model, device_ids=[gpu])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    orders = []
    for _ in range(2):
        orders.append([])
        for x, y, numbers in trainloader:
            optimizer.zero_grad()
            F.cross_entropy(model(x.cuda(gpu)), y.cuda(gpu)).backward()
            optimizer.step()
            orders[-1] += numbers.tolist()
    order = "the same order" if orders[0] == orders[1] else "another order"
    print(f"rank {gpu}: {len(orders[0])} of {len(train_data)} samples, {order} in the second epoch")


if __name__ == "__main__":
    main()
