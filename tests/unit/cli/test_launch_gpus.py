"""`legroom launch` with one virtual GPU per rank."""

import json
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TRAINING = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(512, 512).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    model(torch.randn(1024, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
dist.destroy_process_group()
"""


def test_an_out_of_memory_report_names_the_rank(launch):
    done = launch(TRAINING, ["--gpu", "64MiB,4MiB"])
    assert done.returncode == 1
    assert "Out of memory on rank 1 at step 0" in done.stderr
    assert "virtual GPU 1, 4.0 MiB" in done.stderr
    # The launcher may stop rank 0 before it notices the lost connection.
    assert re.search(r"rank 0: (connection lost|stopped by the launcher)", done.stderr), done.stderr
    assert "  legroom report train.launch/rank-1.legroom" in done.stderr
    assert "legroom launch --gpu 64MiB,4MiB --nproc 2 train.py" in done.stderr


CHECKS_ITS_GPUS = f"""
import os, sys, torch
rank = int(os.environ["LOCAL_RANK"])
if torch.cuda.device_count() != int(os.environ["LOCAL_WORLD_SIZE"]):
    sys.exit("there are fewer GPUs than ranks")
torch.empty(16 << 20, device=f"cuda:{{1 - rank}}")  # counts for the other GPU
{TRAINING.replace("    optimizer.step()", "    assert model.module.weight.device == torch.device('cuda', rank); optimizer.step()")}
"""


def test_a_dry_run_predicts_each_rank_on_its_own_gpu_and_starts_none(launch):
    done = launch(CHECKS_ITS_GPUS, ["--dry-run", "--gpu", "8GiB,5MiB", "--format", "json"])
    ranks = json.loads(done.stdout)["ranks"]
    assert [rank["verdict"] for rank in ranks] == ["fits", "does-not-fit"], ranks
    assert ranks[0]["peak_device_bytes"] == ranks[1]["peak_device_bytes"] < 64 << 20
    assert done.returncode == 1
    assert not list(Path().glob("*.launch"))


def test_a_dry_run_without_a_gpu_is_rejected(launch):
    done = launch(TRAINING, ["--dry-run", "--nproc", "2"])
    assert "add --gpu 24GiB" in " ".join(done.stdout.split())
