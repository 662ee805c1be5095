"""Measures the memory balance of a pipeline's stages, and the accuracy of the prediction.

    python -m bench.scale.pipeline_balance [--stages 2 4] [--models resnet50 gpt]

Each rank is a process with its own virtual GPU. Two steps are computed on the CPU through `legroom.parallel` with
strategy "pipeline". The prediction is made before the first step and determines the split.
"""

from typing import Any

import torch
from torch import nn

import legroom
from bench.lib.command_line import command_line
from bench.lib.rank_pool import RankPool
from bench.lib.table import print_table
from bench.scale.models import GPT, ResNet50, image_batch, text_batch, token_loss
from legroom.units import format_size

STEPS, MICRO_BATCHES = 2, 8


def main() -> None:
    arguments = command_line(__doc__)
    arguments.add_argument("--stages", type=int, nargs="*", default=[2, 4])
    arguments.add_argument("--models", nargs="*", default=["resnet50", "gpt"])
    arguments.add_argument("--schedules", nargs="*", default=["1f1b", "gpipe"])
    chosen = arguments.parse_args()
    rows = []
    for stages in chosen.stages:
        with RankPool(stages, gpu=",".join(["16GiB"] * stages)) as pool:
            for name in chosen.models:
                for schedule in chosen.schedules:
                    peaks = pool.run(train, name, schedule, timeout=1500)
                    rows.append(_row(name, stages, schedule, peaks))
                    print(" | ".join(rows[-1]), flush=True)
    print_table(
        "Stages of a pipeline on virtual GPUs: peak memory of each rank",
        ("model", "stages", "schedule", "measured", "largest / smallest", "predicted relative to measured"),
        rows,
    )


def _row(name: str, stages: int, schedule: str, peaks: list[tuple[int, tuple[int, ...]]]) -> tuple[str, ...]:
    measured = [peak for peak, _ in peaks]
    predicted = peaks[0][1]
    errors = [guess / peak - 1 for guess, peak in zip(predicted, measured, strict=True)]
    return (
        name,
        str(stages),
        schedule,
        ", ".join(map(format_size, measured)),
        f"{max(measured) / min(measured):.3f}",
        ", ".join(f"{error:+.1%}" for error in errors),
    )


def train(name: str, schedule: str) -> tuple[int, tuple[int, ...]]:
    """Return the peak of this rank and the predicted peaks of all ranks. This function runs on every rank."""
    torch.manual_seed(0)
    model, batch = work(name)
    torch.cuda.reset_peak_memory_stats()
    run = legroom.parallel(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-4),
        "pipeline",
        batch=batch,
        schedule=schedule,  # type: ignore[arg-type]
        micro_batches=MICRO_BATCHES,
    )
    for _ in range(STEPS):
        run.step(lambda x, y: token_loss(run.model(x), y), *batch)
    assert run.choice.plan is not None
    return torch.cuda.max_memory_allocated(), run.choice.plan.balance.peaks


def work(name: str) -> tuple[nn.Module, Any]:
    if name == "resnet50":
        return ResNet50(), image_batch(32, 192)
    return GPT(24, 256, 8, 8192, 128), text_batch(32, 128, 8192)


if __name__ == "__main__":
    main()
