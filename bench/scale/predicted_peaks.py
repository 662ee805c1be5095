"""Compares the memory that `strategy="auto"` predicts for `ddp` and `fsdp` with the measured memory of every rank.

    python -m bench.scale.predicted_peaks [--ranks 2 4] [--models resnet50 gpt]

Each rank is a process with its own virtual GPU. Two steps are computed on the CPU. The prediction is one number for
the rank with the highest use: reserved memory for `ddp` and allocated memory for `fsdp`.
"""

import torch

import legroom
from bench.lib.command_line import command_line
from bench.lib.rank_pool import RankPool
from bench.lib.table import print_table
from bench.scale.models import token_loss
from bench.scale.pipeline_balance import work
from legroom.units import format_size

STEPS = 2


def main() -> None:
    arguments = command_line(__doc__)
    arguments.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    arguments.add_argument("--models", nargs="*", default=["resnet50", "gpt"])
    chosen = arguments.parse_args()
    rows = []
    for ranks in chosen.ranks:
        with RankPool(ranks, gpu=",".join(["16GiB"] * ranks)) as pool:
            for name in chosen.models:
                predicted = pool.run(predictions, name, timeout=900)[0]
                for strategy in ("ddp", "fsdp"):
                    measured = pool.run(train, name, strategy, timeout=900)
                    rows.append(row(name, ranks, strategy, predicted[strategy], measured))
                    print(" | ".join(rows[-1]), flush=True)
    print_table(
        "Predicted by auto, and every rank's peak on virtual GPUs",
        ("model", "ranks", "strategy", "predicted", "allocated", "reserved", "error"),
        rows,
    )


def row(
    name: str, ranks: int, strategy: str, predicted: int, measured: list[tuple[int, int]]
) -> tuple[str, ...]:
    allocated, reserved = zip(*measured, strict=True)
    fullest = max(reserved if strategy == "ddp" else allocated)
    return (
        name,
        str(ranks),
        strategy,
        format_size(predicted),
        ", ".join(map(format_size, allocated)),
        ", ".join(map(format_size, reserved)),
        f"{predicted / fullest - 1:+.1%}",
    )


def predictions(name: str) -> dict[str, int]:
    """Return the prediction of `auto` for each strategy. This function runs on every rank."""
    torch.manual_seed(0)
    model, batch = work(name)
    run = legroom.parallel(model, torch.optim.AdamW(model.parameters(), lr=1e-4), "auto", batch=batch)
    return {prediction.strategy: prediction.peak for prediction in run.choice.predictions}


def train(name: str, strategy: str) -> tuple[int, int]:
    """Return the peaks of allocated and reserved memory. This function runs on every rank."""
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
    share = [tensor.tensor_split(run.world_size)[run.rank] for tensor in batch]
    for _ in range(STEPS):
        run.step(lambda x, y: token_loss(run.model(x), y), *share)
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()


if __name__ == "__main__":
    main()
