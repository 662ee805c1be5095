"""Compares DDP with NCCL and FSDP2 through `legroom.parallel` with hand-written training, one rank on a real GPU. Needs a GPU.

    python -m bench.scale.strategies_gpu [FOLDER]       # --small tests the program on a virtual GPU

The model is a 12-layer GPT with AdamW in float32 (and bfloat16 for FSDP2's policy). The program prints the difference
of the weights after five steps, the time of a step relative to the hand-written loop (alternating, median of rounds),
and the predicted and measured peaks of each strategy. NCCL's own buffers are outside torch's allocator and are not
counted.
"""

import contextlib
import gc
import json
import os
import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import legroom
from bench.lib.command_line import command_line
from bench.lib.table import print_table
from bench.scale.models import GPT, text_batch, token_loss
from legroom.scale.prediction import strategy_memory
from legroom.scale.prediction.step_trace import device_model_of
from legroom.scale.prediction.strategy_memory import TrainingSetup
from legroom.units import format_size

ROUNDS, STEPS, COMPARED = 4, 3, 5


@dataclass(frozen=True, slots=True)
class Work:
    layers: int
    width: int
    heads: int
    vocabulary: int
    length: int
    rows: int

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return GPT(self.layers, self.width, self.heads, self.vocabulary, self.length)

    def batch(self) -> Any:
        torch.manual_seed(1)
        return text_batch(self.rows, self.length, self.vocabulary)


FULL = Work(12, 1024, 16, 32768, 512, 8)
SMALL = Work(2, 32, 2, 64, 16, 2)


def main() -> None:
    arguments = command_line(__doc__)
    arguments.add_argument("folder", nargs="?", type=Path)
    arguments.add_argument("--small", action="store_true")
    chosen = arguments.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.update(
        RANK="0",
        WORLD_SIZE="1",
        LOCAL_RANK="0",
        LOCAL_WORLD_SIZE="1",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    with legroom.VirtualGPU("2GiB") if chosen.small else contextlib.nullcontext():
        rows = measure(SMALL if chosen.small else FULL)
    print_table(
        f"One rank, {'a virtual GPU' if chosen.small else torch.cuda.get_device_name()}, torch {torch.__version__}",
        ("variant", "largest difference", "time of a step", "predicted", "measured", "error"),
        [
            (
                row["variant"],
                f"{row['difference']:.1e}",
                f"{row['ratio']:.3f} ×",
                format_size(row["predicted"]) if row["predicted"] else "",
                format_size(row["measured"]),
                f"{row['predicted'] / row['measured'] - 1:+.1%}" if row["predicted"] else "",
            )
            for row in rows
        ],
    )
    if chosen.folder:
        (chosen.folder / "strategies_gpu.json").write_text(json.dumps(rows, indent=1))


WAYS = ("by hand", "ddp", "ddp, guarded", "fsdp", "fsdp, bf16", "fsdp, offloaded")


def measure(work: Work) -> list[dict[str, Any]]:
    began = time.perf_counter()
    device_model = device_model_of(torch.device("cuda", 0))
    setup = TrainingSetup(work.model(), None, work.batch(), (device_model.capacity,), device_model)
    predicted = {
        "by hand": strategy_memory.single_device(setup, work.rows).peaks[0].allocated,
        "ddp": strategy_memory.ddp_peaks(setup, work.rows).allocated,
        "fsdp": strategy_memory.fsdp(setup, [1.0]).peak,
        "fsdp, offloaded": strategy_memory.fsdp(setup, [1.0], offload=True).peak,
    }
    print(f"predicted after {time.perf_counter() - began:.1f} s", flush=True)
    truth: dict[str, torch.Tensor] = {}
    rows: list[dict[str, Any]] = []
    by_hand_seconds = 0.0
    for variant in WAYS:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        step, weights = make(variant, work)
        for _ in range(COMPARED):
            step()
        now = weights()
        truth = truth or now
        difference = max((now[name] - truth[name]).abs().max().item() for name in truth)
        seconds = _seconds(step)
        by_hand_seconds = by_hand_seconds or seconds
        rows.append(
            {
                "variant": variant,
                "difference": difference,
                "seconds": seconds,
                "ratio": seconds / by_hand_seconds,
                "predicted": predicted.get(variant, 0),
                "measured": torch.cuda.max_memory_allocated(),
                "reserved": torch.cuda.max_memory_reserved(),
            }
        )
        print(f"{variant}: after {time.perf_counter() - began:.1f} s", flush=True)
        del step, weights, now
    return rows


def make(variant: str, work: Work) -> tuple[Callable[[], Any], Callable[[], dict[str, torch.Tensor]]]:
    model = work.model()
    x, y = work.batch()
    if variant == "by hand":
        model.cuda()
        x, y = x.cuda(), y.cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

        def step() -> None:
            token_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step, lambda: _weights(model)
    strategy, _, how = variant.partition(", ")
    run = legroom.parallel(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-4),
        strategy,
        precision="bf16" if how == "bf16" else None,
        offload=how == "offloaded",
    )
    stepper = run.guard(cache_sizes=False) if how == "guarded" else run
    x, y = x.cuda(), y.cuda()
    return lambda: stepper.step(lambda x, y: token_loss(run.model(x), y), x, y), lambda: _weights(run.module)


def _weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: (each.full_tensor() if hasattr(each, "full_tensor") else each.detach()).cpu().clone()
        for name, each in model.named_parameters()
    }


def _seconds(step: Callable[[], Any]) -> float:
    times = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - began) / STEPS)
    return statistics.median(times)


if __name__ == "__main__":
    main()
