"""Measures the cost of agreement between ranks. Compares DDP and FSDP2 steps with and without agreement.

    python -m bench.guard.rank_agreement [FOLDER]
    python -m bench.guard.rank_agreement --cpu

On a real GPU, one rank runs with NCCL, which includes all costs except the delay of other ranks. The exchange at the
end of a step is measured separately, over gloo between processes of this machine. `--cpu` measures whole steps of two
ranks over gloo on the CPU. Both kinds of step alternate, and the result is the median over rounds. `--small` tests the
program on a virtual GPU.
"""

import json
import os
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import legroom
from bench.lib.command_line import command_line
from bench.lib.rank_pool import RankPool
from bench.lib.table import print_table
from legroom.train.ranks.coordinator import DistributedRanks, ranks_for

ROUNDS, STEPS, WARM_UP = 7, 4, 3
EXCHANGES = 300


@dataclass(frozen=True, slots=True)
class Work:
    """A transformer and its batch."""

    rows: int
    layers: int = 24
    width: int = 1024
    heads: int = 16
    length: int = 1024
    device: str = "cuda"


SMALL = Work(2, layers=2, width=64, heads=4, length=16)
ON_CPU = Work(8, layers=4, width=512, heads=8, length=128, device="cpu")


def main() -> None:
    arguments = command_line(__doc__)
    arguments.add_argument("folder", nargs="?", type=Path)
    arguments.add_argument("--small", action="store_true")
    arguments.add_argument("--cpu", action="store_true")
    chosen = arguments.parse_args()
    if chosen.cpu:
        with RankPool(2) as pool:
            figures = [pool.run(compare, kind, ON_CPU, timeout=600)[0] for kind in ("DDP", "FSDP2")]
        show(
            figures,
            f"A step of a transformer ({ON_CPU.layers} layers of {ON_CPU.width}, float32), 2 ranks on the CPU, gloo",
        )
        return
    exchanges = [(ranks, exchange_seconds(ranks)) for ranks in ((2,) if chosen.small else (2, 8))]
    print_table(
        "The exchange at the end of a step, gloo, one machine",
        ("ranks", "median"),
        [(str(ranks), f"{seconds * 1e6:.0f} µs") for ranks, seconds in exchanges],
    )
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29641", RANK="0", WORLD_SIZE="1")
    with legroom.VirtualGPU("8GiB") if chosen.small else nullcontext():
        dist.init_process_group("nccl")
        figures = [
            compare(kind, work)
            for kind in ("DDP", "FSDP2")
            for work in ((SMALL,) if chosen.small else (Work(16), Work(32)))
        ]
        dist.destroy_process_group()
    show(figures, "A step of a transformer (24 layers of 1024, sequences of 1024, bf16 autocast), 1 rank")
    if chosen.folder is not None:
        chosen.folder.mkdir(parents=True, exist_ok=True)
        (chosen.folder / "agreement.json").write_text(
            json.dumps({"exchange": exchanges, "steps": figures}, indent=1)
        )


def show(figures: list[dict[str, Any]], title: str) -> None:
    print_table(
        title,
        ("model", "rows", "plain", "with agreement", "cost", "spread plain", "spread agreement"),
        [
            (
                each["model"], str(each["rows"]), f"{each['plain'] * 1e3:.2f} ms", f"{each['agreed'] * 1e3:.2f} ms",
                f"{each['agreed'] / each['plain'] - 1:+.2%}", f"{each['spread_plain']:.1%}", f"{each['spread_agreed']:.1%}",
            )
            for each in figures
        ],
    )  # fmt: skip


def compare(kind: str, work: Work) -> dict[str, Any]:
    """Return the median time of both kinds of step, which alternate on the same model."""
    torch.manual_seed(0)
    if work.device == "cpu":
        torch.set_num_threads(1)
    rows, width = work.rows, work.width
    layer = nn.TransformerEncoderLayer(width, work.heads, 4 * width, 0.0, batch_first=True)
    model: nn.Module = nn.TransformerEncoder(layer, work.layers, enable_nested_tensor=False).to(work.device)
    if kind == "DDP":
        model = DistributedDataParallel(model)
    else:
        for block in model.layers:
            fully_shard(block)
        fully_shard(model)
    ranks = ranks_for(model)
    assert ranks is not None
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randn(rows, work.length, width, device=work.device)

    def passes() -> None:
        with torch.autocast(work.device, dtype=torch.bfloat16, enabled=work.device == "cuda"):
            loss = model(x).float().square().mean()
        loss.backward()

    def plain() -> None:
        passes()
        optimizer.step()
        optimizer.zero_grad()

    def agreed() -> None:
        _agreed(ranks, rows, passes)
        optimizer.step()
        optimizer.zero_grad()

    times: dict[str, list[float]] = {"plain": [], "agreed": []}
    for way in (plain, agreed):
        seconds(way, WARM_UP)
    for _ in range(ROUNDS):
        times["plain"].append(seconds(plain, STEPS))
        times["agreed"].append(seconds(agreed, STEPS))
    medians = {name: statistics.median(found) for name, found in times.items()}
    spreads = {f"spread_{name}": (max(found) - min(found)) / medians[name] for name, found in times.items()}
    return {"model": kind, "rows": rows, **medians, **spreads}


def _agreed(ranks: DistributedRanks, rows: int, passes: Callable[[], None]) -> None:
    plan = ranks.plan(rows, rows)
    with ranks.micro_batch(0, plan.passes):
        passes()
    assert ranks.agree(None, rows) is None


def seconds(step: Callable[[], None], steps: int) -> float:
    wait = torch.cuda.synchronize if torch.cuda.is_available() else nullcontext
    wait()
    begun = time.perf_counter()
    for _ in range(steps):
        step()
    wait()
    return (time.perf_counter() - begun) / steps


def exchange_seconds(ranks: int) -> float:
    with RankPool(ranks) as pool:
        return statistics.median(pool.run(exchanging))


def exchanging() -> float:
    """Return the median time of an exchange. This function runs on each rank."""
    ranks = ranks_for(DistributedDataParallel(nn.Linear(2, 2)))
    assert ranks is not None
    found = []
    for _ in range(EXCHANGES):
        begun = time.perf_counter()
        ranks._exchange([1.0] * 6)
        found.append(time.perf_counter() - begun)
    return statistics.median(found)


if __name__ == "__main__":
    main()
