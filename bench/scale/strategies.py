"""Compares the weights of every strategy with the weights of one process after twenty steps in float32.

    python -m bench.scale.strategies [--ranks 2 4]

A small GPT with tied weights is trained. The last batch of each epoch is smaller. `ddp`, `fsdp` and `pipeline` run in
processes over gloo on the CPU. `dp` and `split` run in one process with virtual GPUs. Some rows use unequal
micro-batches.
"""

from typing import Any

import torch
from torch.utils.data import TensorDataset

import legroom
from bench.lib.command_line import command_line
from bench.lib.rank_pool import RankPool
from bench.lib.table import print_table
from bench.scale.models import GPT, text_batch, token_loss

STEPS, ROWS, BATCH = 20, 44, 16
SHARES = (1.0, 3.0, 2.0, 1.5)

RANKED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("ddp", {}),
    ("ddp", {"shares": SHARES}),
    ("ddp, guarded", {"shares": SHARES}),
    ("fsdp", {}),
    ("fsdp", {"shares": SHARES}),
    ("fsdp, guarded", {"shares": SHARES}),
    ("pipeline", {"schedule": "1f1b"}),
    ("pipeline", {"schedule": "gpipe"}),
)
ALONE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("dp", {}),
    ("dp", {"shares": SHARES}),
    ("dp", {"shares": (0.0, *SHARES[1:])}),
    ("split", {}),
)


def main() -> None:
    arguments = command_line(__doc__)
    arguments.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    chosen = arguments.parse_args()
    truth = train("ddp", {})  # without a launcher, this process trains alone
    rows = []
    for ranks in chosen.ranks:
        runs: list[tuple[str, dict[str, Any], list[Any]]] = []
        with RankPool(ranks) as pool:
            runs += [
                (variant, options, pool.run(train, variant, _for(options, ranks), timeout=600))
                for variant, options in RANKED
            ]
        for variant, options in ALONE:
            with legroom.VirtualGPU(*["256MiB"] * ranks):
                runs.append((variant, options, [train(variant, _for(options, ranks))]))
        for variant, options, results in runs:
            apart = max(_difference(weights, truth[0]) for weights, _ in results)
            losses = max(
                abs(ours - true) for _, found in results for ours, true in zip(found, truth[1], strict=True)
            )
            how = ", ".join(f"{name} {_text(value, ranks)}" for name, value in options.items())
            rows.append((variant, how, str(ranks), _figure(apart), _figure(losses)))
            print(" | ".join(rows[-1]), flush=True)
    print_table(
        f"Weights after {STEPS} steps compared with one process",
        ("strategy", "with", "ranks or GPUs", "largest difference of a weight", "of a loss"),
        rows,
    )


def train(variant: str, options: dict[str, Any]) -> Any:
    """Return the weights of this rank and the losses of whole batches. This function runs on every rank."""
    torch.manual_seed(0)
    model = GPT(4, 32, 4, 61, 12, tied=True)
    data = text_batch(ROWS, 12, 61)
    strategy, _, guarded = variant.partition(", ")
    run = legroom.parallel(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        strategy,  # type: ignore[arg-type]
        batch=tuple(each[:BATCH] for each in data),
        **options,
    )
    stepper = run.guard(cache_sizes=False) if guarded else run
    loader = run.loader(TensorDataset(*data), BATCH)
    losses: list[float] = []
    while len(losses) < STEPS:
        for x, y in loader:
            loss = stepper.step(lambda x, y: token_loss(run.model(x), y), x, y)
            losses.append(run.gather(loss).mean().item())
            if len(losses) == STEPS:
                break
    weights = {name: _whole(each).cpu().numpy() for name, each in run.module.named_parameters()}
    return weights, losses


def _whole(tensor: Any) -> torch.Tensor:
    found: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found.detach()


def _difference(weights: dict[str, Any], truth: dict[str, Any]) -> float:
    return max((float(abs(each - truth[name]).max()) for name, each in weights.items()), default=0.0)


def _for(options: dict[str, Any], ranks: int) -> dict[str, Any]:
    return {name: value[:ranks] if name == "shares" else value for name, value in options.items()}


def _text(value: Any, ranks: int) -> str:
    return " : ".join(f"{share:g}" for share in value[:ranks]) if isinstance(value, tuple) else str(value)


def _figure(difference: float) -> str:
    return f"{difference:.1e}" if difference else "0, bit for bit"


if __name__ == "__main__":
    main()
