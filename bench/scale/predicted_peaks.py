"""What `strategy="auto"` foresees for `ddp` and `fsdp`, against what every rank then takes.

    python -m bench.scale.predicted_peaks [--ranks 2 4] [--models resnet50 gpt]

Each rank is a process with a virtual GPU of its own; two steps are trained for real (on the CPU). The forecast is one figure, for the
fullest rank: of what PyTorch reserves (`ddp`), of what is allocated (`fsdp`).
"""

import argparse

import torch

import legroom
from bench.lib.rank_pool import RankPool
from bench.lib.table import print_table
from bench.scale.models import token_loss
from bench.scale.pipeline_balance import work
from legroom.units import format_size

STEPS = 2


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    arguments.add_argument("--models", nargs="*", default=["resnet50", "gpt"])
    chosen = arguments.parse_args()
    rows = []
    for ranks in chosen.ranks:
        with RankPool(ranks, gpu=",".join(["16GiB"] * ranks)) as pool:
            for name in chosen.models:
                foreseen = pool.run(looked_ahead, name, timeout=900)[0]
                for strategy in ("ddp", "fsdp"):
                    measured = pool.run(train, name, strategy, timeout=900)
                    rows.append(row(name, ranks, strategy, foreseen[strategy], measured))
                    print(" | ".join(rows[-1]), flush=True)
    print_table(
        "Foreseen by auto, against every rank's peak on virtual GPUs",
        ("model", "ranks", "strategy", "foreseen", "allocated", "reserved", "error"),
        rows,
    )


def row(
    name: str, ranks: int, strategy: str, foreseen: int, measured: list[tuple[int, int]]
) -> tuple[str, ...]:
    allocated, reserved = zip(*measured, strict=True)
    fullest = max(reserved if strategy == "ddp" else allocated)
    return (
        name,
        str(ranks),
        strategy,
        format_size(foreseen),
        ", ".join(map(format_size, allocated)),
        ", ".join(map(format_size, reserved)),
        f"{foreseen / fullest - 1:+.1%}",
    )


def looked_ahead(name: str) -> dict[str, int]:
    """On every rank: what `auto` foresees of each strategy."""
    torch.manual_seed(0)
    model, batch = work(name)
    run = legroom.parallel(model, torch.optim.AdamW(model.parameters(), lr=1e-4), "auto", batch=batch)
    return {forecast.strategy: forecast.peak for forecast in run.choice.forecasts}


def train(name: str, strategy: str) -> tuple[int, int]:
    """On every rank: the most that was allocated, and reserved."""
    torch.manual_seed(0)
    model, batch = work(name)
    run = legroom.parallel(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-4),
        strategy,  # type: ignore[arg-type]
        batch=batch,
    )
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    share = [tensor.tensor_split(run.size)[run.rank] for tensor in batch]
    for _ in range(STEPS):
        run.step(lambda x, y: token_loss(run.model(x), y), *share)
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()


if __name__ == "__main__":
    main()
