"""What watching costs and what it sees.

    python -m bench.watch_cost [--json FILE]

1. Always-on: a training loop of small operations, with the detector attached and without, in alternating blocks of the same
   run; and the detector's own work after each step, timed by itself, as a share of the step.
2. A scan: with 300,000 objects in the process that Python's collector lists, the time to list all tensors, to follow one of
   them to its holder, and both together (processor time of the thread, for others may be at work), with the machine's load beside it.
3. Coverage: a run that dies of memory on a virtual GPU (on the real one where there is one): the share of the bytes then alive that
   have a category, a line and a holder.
"""

import argparse
import contextlib
import gc
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench.table import print_table
from legroom.memory.events import Category, Holder, Note, Oom
from legroom.memory.ledger import Ledger
from legroom.observe.holder_paths import Variables, find_path
from legroom.observe.session import Session
from legroom.observe.watching.census import look_around
from legroom.observe.watching.watcher import Watcher
from legroom.units import GiB, MiB

BLOCKS, STEPS = 24, 40
OBJECTS = 300_000
KEPT: list[torch.Tensor] = []
"""What the scan looks for."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    figures: dict[str, Any] = {"torch": torch.__version__, "device": device}
    figures["scan"] = scan()  # first, while there are fewer objects than it wants
    figures["always_on"] = always_on(device)
    figures["coverage"] = coverage(device)
    on, seen, covered = figures["always_on"], figures["scan"], figures["coverage"]
    print_table(
        f"Watching, torch {torch.__version__} on {device}",
        ["figure", "value"],
        [
            ["step without watching", f"{on['plain_ms']:.3f} ms"],
            ["with / without, medians of alternating blocks", f"{on['ratio']:.4f}"],
            [
                "the detector's own work after a step",
                f"{on['own_us']:.1f} us = {on['own_share']:.2%} of the step",
            ],
            ["objects in the process", f"{seen['objects']:,}"],
            ["list all tensors", f"{seen['list_ms']:.0f} ms"],
            ["follow one to its holder", f"{seen['path_ms']:.0f} ms ({seen['holder']})"],
            ["both, best of seven", f"{seen['both_ms']:.0f} ms"],
            ["load of the machine meanwhile", f"{seen['load']:.1f} on {os.cpu_count()} cores"],
            ["bytes at the failure with a category", f"{covered['category']:.1%}"],
            ["... with a line", f"{covered['line']:.1%}"],
            ["... with a holder", f"{covered['holder']:.1%}"],
        ],
    )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


def always_on(device: str) -> dict[str, float]:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(12))).to(device)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    x = torch.randn(16, 64, device=device)

    def step() -> None:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()

    def block() -> float:
        began = time.perf_counter()
        for _ in range(STEPS):
            step()
        return (time.perf_counter() - began) / STEPS

    watcher = Watcher(lambda kept: None)
    watcher.attach()
    for _ in range(40):  # past the first looks
        step()
    watcher.detach()
    ratios, plain_times, counting = [], [], []
    original = watcher.ticks._on_tick

    def timed() -> None:
        began = time.perf_counter()
        original()
        counting.append(time.perf_counter() - began)

    watcher.ticks._on_tick = timed
    for number in range(BLOCKS):
        pair = {}
        for attached in (True, False) if number % 2 else (False, True):
            looked = watcher.seconds_looking
            if attached:
                watcher.attach()
            pair[attached] = block()
            watcher.detach()
            if watcher.seconds_looking > looked:
                pair.clear()  # a look belongs to what grows, not to what is always on
                break
        if pair:
            ratios.append(pair[True] / pair[False])
            plain_times.append(pair[False])
    own, plain = statistics.mean(sorted(counting)[: len(counting) * 9 // 10]), min(plain_times)
    return {
        "plain_ms": plain * 1e3,
        "ratio": statistics.median(ratios),
        "own_us": own * 1e6,
        "own_share": own / plain,
    }


def scan() -> dict[str, Any]:
    KEPT.extend(torch.ones(2, requires_grad=True) * i for i in range(400))
    gc.collect()
    ballast: list[Any] = []
    ballast.extend([i] for i in range(OBJECTS - len(gc.get_objects())))
    listing, following, holder = [], [], ""
    for _ in range(7):
        began = time.thread_time()
        tensors, _ = look_around()
        listing.append(time.thread_time() - began)
        del tensors
        began = time.thread_time()
        path = find_path(KEPT[200], Variables(None), least=64)
        following.append(time.thread_time() - began)
        holder = f"{path.name} ({path.described})"
    figures = {
        "objects": len(gc.get_objects()),
        "list_ms": min(listing) * 1e3,
        "path_ms": min(following) * 1e3,
        "both_ms": min(map(sum, zip(listing, following, strict=True))) * 1e3,
        "load": os.getloadavg()[0],
        "holder": holder,
    }
    del ballast
    KEPT.clear()
    return figures


def coverage(device: str) -> dict[str, float]:
    """The shares at the failure, in a run whose batches double until they do not fit. A temporary counts as having a category only
    if it was born in the step at work."""
    events: list[Any] = []
    cap = 96 * MiB
    gpus = None if device == "cuda" else [cap]
    if device == "cuda":
        torch.cuda.set_per_process_memory_fraction(2 * GiB / torch.cuda.get_device_properties(0).total_memory)
    with Session(events.append, gpus=gpus) as session:
        with contextlib.suppress(torch.OutOfMemoryError):
            _train_until_full()
        session.finish()
    ledger = Ledger(events)
    oom: Oom = ledger.ooms()[-1]
    state = ledger.at_oom(len(ledger.ooms()) - 1)
    total = sum(each.block_bytes for each in state.live)
    named = sum(
        each.block_bytes
        for each in state.live
        if each.category is not Category.TEMPORARY or each.step == oom.step
    )
    reached = next((int(e.text) for e in events if isinstance(e, Note) and e.kind == "reached"), 0)
    assert any(isinstance(event, Holder) for event in events)
    return {
        "category": named / total,
        "line": state.coverage(),
        "holder": min(reached / total, 1.0),
        "bytes": total,
    }


def _train_until_full() -> None:
    width = 1024 if torch.cuda.get_device_properties(0).total_memory > GiB else 256
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, dropout=0.0),
        4,
        enable_nested_tensor=False,
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = 2
    while True:
        x = torch.randn(batch, 64, width, device="cuda")
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        batch *= 2


if __name__ == "__main__":
    main()
