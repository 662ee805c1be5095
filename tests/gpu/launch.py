"""Checks `legroom launch` on a machine with a GPU, without pytest.

    python -m tests.gpu.launch [FOLDER]

One rank trains over NCCL and is recorded, and one rank runs out of memory. More ranks than GPUs must be rejected. The
prediction of a dry run is compared with the first rank. The output is written to FOLDER.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

TRAINING = """
import os, sys
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
if "small" in sys.argv:
    torch.cuda.set_per_process_memory_fraction(0.005)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(12))).cuda())
optimizer = torch.optim.Adam(model.parameters())
for step in range(5):
    model(torch.randn(8192, 2048, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("peak", torch.cuda.max_memory_allocated(), flush=True)
dist.destroy_process_group()
"""


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.py").write_text(TRAINING)
    count = torch.cuda.device_count()
    if not count:
        raise SystemExit("This machine has no GPU.")

    predicted = json.loads(
        legroom(folder, "--nproc", "1", "--dry-run", "--format", "json", "train.py").stdout
    )
    done = legroom(folder, "--nproc", "1", "--format", "json", "train.py")
    reported = json.loads(done.stdout)["ranks"][0]
    measured = int(done.stderr.split("peak ")[1].split()[0])
    check("a rank over NCCL succeeds", done.returncode == 0)
    check("its peak is that of the allocator", reported["peak_allocated_bytes"] == measured)
    check("its steps are counted", reported["steps"] == 5)
    first = predicted["ranks"][0]
    if first["error"]:
        print(f"not predicted: {first['error']}")
    else:
        peak = first["peak_allocated_bytes"]
        print(f"predicted {peak:,}, measured {measured:,} bytes allocated: {peak / measured - 1:+.1%}")

    short = legroom(folder, "--nproc", "1", "train.py", "small")
    check("a rank that runs out of memory fails", short.returncode == 1)
    check("its report names the rank", "Out of memory on rank 0" in short.stderr)
    (folder / "out_of_memory.txt").write_text(short.stdout + short.stderr)

    more = legroom(folder, "--nproc", str(count + 1), "train.py")
    check("more ranks than GPUs are rejected", more.returncode == 2 and f"has {count}" in more.stderr)
    print(more.stderr.strip())


def legroom(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "legroom", "launch", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, env=environment)
    if done.returncode not in (0, 1, 2, 3):
        print(done.stdout, done.stderr)
    return done


def check(name: str, passed: bool) -> None:
    print(f"{'ok  ' if passed else 'FAIL'}  {name}", flush=True)


if __name__ == "__main__":
    main()
