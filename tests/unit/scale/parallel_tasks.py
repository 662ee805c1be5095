"""What ranks do in the tests of strategies: train a small model for some steps, and tell what came out."""

from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import legroom

ROWS, BATCH, STEPS = 21, 8, 6  # the last batch of an epoch has 5 rows


class Tied(nn.Module):
    """A model of tokens whose head has the embedding's weights, and a layer that nobody uses."""

    def __init__(self, *, unused: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 12)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(12), nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 12)) for _ in range(3)
        )
        self.norm, self.head = nn.LayerNorm(12), nn.Linear(12, 7, bias=False)
        self.unused = nn.Linear(2, 2) if unused else None
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = x + block(x)
        result: torch.Tensor = self.head(self.norm(x))
        return result


def model(*, unused: bool = True) -> nn.Module:
    torch.manual_seed(3)
    return Tied(unused=unused)


def data() -> TensorDataset:
    draws = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randint(0, 7, (ROWS, 4), generator=draws), torch.randint(0, 7, (ROWS, 4), generator=draws)
    )


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def train(strategy: Any, options: dict[str, Any] | None = None, *, guarded: bool = False) -> dict[str, Any]:
    """Losses of the whole batches, weights (those that this rank has), and the prediction of one batch."""
    made = model(unused=strategy != "dp")  # a virtual GPU misplaces the gradients of copies that nobody uses
    run = legroom.parallel(
        made,
        torch.optim.SGD(made.parameters(), lr=0.1, momentum=0.9),
        strategy,
        batch=tuple(data()[:BATCH]),
        **(options or {}),
    )
    stepper = run.guard(cache_sizes=False) if guarded else run
    loader = run.loader(data(), BATCH)
    losses: list[float] = []
    while len(losses) < STEPS:
        for x, y in loader:
            loss = stepper.step(lambda x, y: loss_of(run.model(x), y), x, y)
            losses.append(run.gather(loss).mean().item())
    run.model.eval()
    rows = data()[: BATCH // 2][0].to(run.device)
    mine = rows if run.strategy == "pipeline" else rows.chunk(run.size)[run.rank]
    predicted = run.gather(run.evaluate(lambda x: run.model(x).argmax(-1), mine))
    return {
        "strategy": run.strategy,
        "losses": losses,
        "weights": {name: _whole(each).tolist() for name, each in run.module.named_parameters()},
        "predicted": predicted.tolist(),
        "epoch": loader.state_dict()["epoch"],
    }


def _whole(tensor: Any) -> torch.Tensor:
    found: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.detach()
    return found


def guarded(strategy: str, options: dict[str, Any]) -> dict[str, Any]:
    return train(strategy, options, guarded=True)


def by_tokens(strategy: str) -> dict[str, Any]:
    """A mean over tokens that are not padding, of which ranks have different numbers."""
    ignored = 6

    def weight(_: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (y != ignored).sum()

    made = model()
    run = legroom.parallel(
        made, torch.optim.SGD(made.parameters(), lr=0.1), strategy, weight=weight, batch=tuple(data()[:BATCH])
    )
    for x, y in run.loader(data(), BATCH):
        run.step(
            lambda x, y: nn.functional.cross_entropy(
                run.model(x).flatten(0, 1), y.flatten(), ignore_index=ignored
            ),
            x,
            y,
        )
    return {"weights": {name: _whole(each).tolist() for name, each in run.module.named_parameters()}}


def gathered(strategy: str) -> Any:
    """Objects, numbers and rows of all ranks."""
    made = model()
    run = legroom.parallel(made, torch.optim.SGD(made.parameters(), lr=0.1), strategy)
    rows = torch.arange(2 * (run.rank + 1)).reshape(-1, 2) + 10 * run.rank
    told = run.gather({"rows": rows, "number": torch.tensor(float(run.rank)), "word": f"rank {run.rank}"})
    return {
        "rows": told["rows"].tolist(),
        "number": told["number"].tolist(),
        "word": told["word"],
        "main": run.main,
    }


def moved_over(folder: str) -> Any:
    """Weights and optimizer state that fsdp saved, in a pipeline."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    def make(strategy: Any) -> Any:
        made = model()
        return legroom.parallel(
            made,
            torch.optim.SGD(
                [each for name, each in made.named_parameters() if "unused" not in name], 0.1, 0.9
            ),
            strategy,
            batch=tuple(data()[:BATCH]),
        )

    def steps(run: Any) -> list[float]:
        return [
            run.gather(run.step(lambda x, y: loss_of(run.model(x), y), x, y)).mean().item()
            for x, y in run.loader(data(), BATCH)
        ]

    first = make("fsdp")
    steps(first)
    weights, state = get_state_dict(first.module, first.optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder)
    went_on = steps(first)

    second = make("pipeline")
    weights, state = get_state_dict(second.module, second.optimizer)
    held = {"model": weights, "optimizer": state}
    dcp.load(held, checkpoint_id=folder)
    set_state_dict(
        second.module, second.optimizer, model_state_dict=held["model"], optim_state_dict=held["optimizer"]
    )
    return went_on, steps(second)


def refused(strategy: str, options: dict[str, Any]) -> str:
    made = model()
    try:
        legroom.parallel(made, torch.optim.SGD(made.parameters(), lr=0.1), strategy, **options)  # type: ignore[arg-type]
    except legroom.errors.LegroomError as error:
        return str(error)
    return ""


def peaks(strategy: str) -> tuple[int, int, str, list[float]]:
    """On a virtual GPU: what was measured, what was foreseen, what was chosen, and the shares."""
    torch.manual_seed(0)
    made = nn.Sequential(
        *[part for _ in range(6) for part in (nn.Linear(512, 512), nn.ReLU())], nn.Linear(512, 4)
    )
    batch = (torch.randn(256, 512), torch.zeros(256, dtype=torch.long))
    torch.cuda.reset_peak_memory_stats()
    run = legroom.parallel(made, torch.optim.AdamW(made.parameters()), strategy, batch=batch)  # type: ignore[arg-type]
    dataset = TensorDataset(*batch)
    for _ in range(3):
        for x, y in run.loader(dataset, 256):
            run.step(lambda x, y: nn.functional.cross_entropy(run.model(x), y), x, y)
    plan = run.choice.plan
    foreseen = plan.balance.peaks[run.rank] if plan is not None else 0
    return torch.cuda.max_memory_allocated(), foreseen, run.strategy, run._engine.shares
