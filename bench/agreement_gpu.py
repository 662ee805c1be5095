"""What it costs that ranks agree: steps of DDP and FSDP2 with agreement against the same steps without it.

    python -m bench.agreement_gpu [FOLDER]

One rank with NCCL on a real GPU (all that one GPU can hold): everything that agreement adds is there but the other ranks'
delay. That is measured apart: the exchange at the end of a step, among processes of this machine over gloo.
The two ways take turns, and the median over rounds counts. `--small` tries the program itself on a virtual GPU.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import legroom
from bench.rank_pool import RankPool
from bench.table import print_table
from legroom.train.agree import Ranks, ranks_for

ROUNDS, STEPS, WARM_UP = 7, 4, 3
EXCHANGES = 300


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("folder", nargs="?", type=Path)
    arguments.add_argument("--small", action="store_true")
    chosen = arguments.parse_args()
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
            compare(kind, rows) for kind in ("DDP", "FSDP2") for rows in ((2,) if chosen.small else (16, 32))
        ]
        dist.destroy_process_group()
    print_table(
        "A step of a transformer (24 layers of 1024, sequences of 1024, bf16 autocast), 1 rank",
        ("model", "rows", "plain", "with agreement", "cost", "spread plain", "spread agreement"),
        [
            (
                each["model"], str(each["rows"]), f"{each['plain'] * 1e3:.2f} ms", f"{each['agreed'] * 1e3:.2f} ms",
                f"{each['agreed'] / each['plain'] - 1:+.2%}", f"{each['spread_plain']:.1%}", f"{each['spread_agreed']:.1%}",
            )
            for each in figures
        ],
    )  # fmt: skip
    if chosen.folder is not None:
        chosen.folder.mkdir(parents=True, exist_ok=True)
        (chosen.folder / "agreement.json").write_text(
            json.dumps({"exchange": exchanges, "steps": figures}, indent=1)
        )


def compare(kind: str, rows: int) -> dict[str, Any]:
    """The median step of both ways, taking turns on the same model."""
    torch.manual_seed(0)
    width = 1024 if rows > 2 else 64
    layer = nn.TransformerEncoderLayer(width, 16 if rows > 2 else 4, 4 * width, 0.0, batch_first=True)
    model: nn.Module = nn.TransformerEncoder(layer, 24 if rows > 2 else 2, enable_nested_tensor=False).cuda()
    if kind == "DDP":
        model = DistributedDataParallel(model)
    else:
        for block in model.layers:
            fully_shard(block)
        fully_shard(model)
    ranks = ranks_for(model)
    assert ranks is not None
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randn(rows, 1024 if rows > 2 else 16, width, device="cuda")

    def passes() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
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


def _agreed(ranks: Ranks, rows: int, passes: Callable[[], None]) -> None:
    plan = ranks.plan(rows, rows)
    with ranks.chunk(0, plan.chunks):
        passes()
    assert ranks.settle(None, rows) is None


def seconds(step: Callable[[], None], steps: int) -> float:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / steps


def exchange_seconds(ranks: int) -> float:
    with RankPool(ranks) as pool:
        return statistics.median(pool.run(exchanging))


def exchanging() -> float:
    """On each rank: the median time of an exchange."""
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
