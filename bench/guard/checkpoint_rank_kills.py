"""Kills ranks while they save checkpoints together, and checks the remaining checkpoint.

    python -m bench.guard.checkpoint_rank_kills [--kills 100]

Two ranks save a DDP or FSDP2 model repeatedly. At a random time during a save, rank 0, rank 1 or both get SIGKILL. A
single process then resumes the checkpoint. Its weights must belong to one step, which is not older than the last step
that both ranks had saved.
"""

import random
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import legroom
from bench.guard.checkpoints import Weights
from bench.lib.command_line import command_line
from bench.lib.rank_pool import RankPool
from bench.lib.table import print_table

LIMIT_SECONDS = 60.0


def save_repeatedly(folder: str, kind: str, first: int) -> None:
    """Save one step after another until the process is killed. This function runs on every rank."""
    weights = Weights()
    model: nn.Module = DistributedDataParallel(weights) if kind == "DDP" else fully_shard(weights)
    checkpoints = legroom.Checkpoints(folder, keep=2)
    checkpoints.track(model=model)
    progress = Path(folder).with_suffix(f".{dist.get_rank()}")
    for step in range(first, first + 1000):
        weights.fill(step)
        checkpoints.save(step)
        with progress.open("a") as file:
            file.write(f"{step}\n")


def kill_once(folder: Path, kind: str, first: int, chance: random.Random) -> tuple[str, int, int | None]:
    """Return the killed ranks, the last step that both ranks had saved, and the step that was resumed."""
    with RankPool(2) as pool:
        for pipe in pool._pipes:
            pipe.send((save_repeatedly, (str(folder), kind, first)))
        deadline = time.monotonic() + LIMIT_SECONDS
        while _saved(folder) < first and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(chance.uniform(0, 0.15))
        ranks = chance.choice(((0,), (1,), (0, 1)))
        for rank in ranks:
            pool._processes[rank].kill()
        time.sleep(0.1)  # the other rank notices the kill
    done = _saved(folder)
    model = Weights()
    checkpoints = legroom.Checkpoints(folder)
    checkpoints.track(model=model)
    step = checkpoints.resume()
    return " and ".join(map(str, ranks)), done, step if model.is_at(step) else None


def _saved(folder: Path) -> int:
    """Return the last step that both ranks have saved."""
    steps = []
    for rank in range(2):
        path = folder.with_suffix(f".{rank}")
        steps.append(int((path.read_text().split() or ["0"])[-1]) if path.exists() else 0)
    return min(steps)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--kills", type=int, default=100)
    kills = parser.parse_args().kills
    torch.set_num_threads(1)
    chance = random.Random(0)
    rows = []
    for kind in ("DDP", "FSDP2"):
        with tempfile.TemporaryDirectory() as parent:
            folder, first, lost, newer = Path(parent) / "checkpoints", 1, 0, 0
            for _ in range(kills // 2):
                _, done, resumed = kill_once(folder, kind, first, chance)
                lost += resumed is None or resumed < done
                newer += resumed is not None and resumed > done
                first = max(done, resumed or 0) + 1
            rows.append((kind, *map(str, (kills // 2, newer, lost))))
            print(*rows[-1], flush=True)
    print_table(
        "Kills of ranks that save together (12 MB, 2 ranks)",
        ("model", "kills", "resumed the one being saved", "lost"),
        rows,
    )


if __name__ == "__main__":
    main()
