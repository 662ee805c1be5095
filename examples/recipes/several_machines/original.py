"""Train on two machines with `init_method`. Each machine needs a command with its own rank. If the other machine is missing, the
program waits for up to 30 minutes without printing a message.

legroom run --gpu 64MiB examples/recipes/several_machines/original.py --rank 0 --world-size 1
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--init-method", default="tcp://127.0.0.1:2568", help="address of the first machine")
parser.add_argument("--rank", type=int, required=True, help="number of this machine")
parser.add_argument("--world-size", type=int, default=2, help="number of machines, with one GPU each")
args = parser.parse_args()

torch.distributed.init_process_group(
    backend="nccl", init_method=args.init_method, world_size=args.world_size, rank=args.rank
)
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 10).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    inputs, labels = torch.randn(32, 64).cuda(), torch.randint(10, (32,)).cuda()
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
print(f"rank {args.rank} of {args.world_size}: loss {loss.item():.2f}")
torch.distributed.destroy_process_group()
