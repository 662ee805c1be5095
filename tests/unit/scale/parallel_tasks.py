"""Tasks that ranks run in the strategy tests: train a small model, and return the results."""

from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import legroom

SAMPLES, BATCH, STEPS = 21, 8, 6  # the last batch of an epoch has 5 samples


class Tied(nn.Module):
    """A language model with tied embeddings and an unused layer."""

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
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randint(0, 7, (SAMPLES, 4), generator=generator),
        torch.randint(0, 7, (SAMPLES, 4), generator=generator),
    )


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def train(strategy: Any, options: dict[str, Any] | None = None, *, guarded: bool = False) -> dict[str, Any]:
    """Return the losses of the global batches, the weights of this rank, and the predictions for one batch."""
    network = model()
    run = legroom.parallel(
        network,
        torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9),
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
    samples = data()[: BATCH // 2][0].to(run.device)
    own = samples if run.strategy == "pipeline" else samples.chunk(run.world_size)[run.rank]
    predicted = run.gather(run.evaluate(lambda x: run.model(x).argmax(-1), own))
    return {
        "strategy": run.strategy,
        "losses": losses,
        "weights": {name: _full(each).tolist() for name, each in run.module.named_parameters()},
        "predicted": predicted.tolist(),
        "epoch": loader.state_dict()["epoch"],
    }


def _full(tensor: Any) -> torch.Tensor:
    full: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.detach()
    return full


def guarded(strategy: str, options: dict[str, Any]) -> dict[str, Any]:
    return train(strategy, options, guarded=True)


def by_tokens(strategy: str) -> dict[str, Any]:
    """Train with a mean over non-padding tokens. The number of these tokens differs between ranks."""
    ignored = 6

    def weight(_: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (y != ignored).sum()

    network = model()
    run = legroom.parallel(
        network,
        torch.optim.SGD(network.parameters(), lr=0.1),
        strategy,
        weight=weight,
        batch=tuple(data()[:BATCH]),
    )
    for x, y in run.loader(data(), BATCH):
        run.step(
            lambda x, y: nn.functional.cross_entropy(
                run.model(x).flatten(0, 1), y.flatten(), ignore_index=ignored
            ),
            x,
            y,
        )
    return {"weights": {name: _full(each).tolist() for name, each in run.module.named_parameters()}}


def gathered(strategy: str) -> Any:
    """Gather objects, numbers and samples from all ranks."""
    network = model()
    run = legroom.parallel(network, torch.optim.SGD(network.parameters(), lr=0.1), strategy)
    samples = torch.arange(2 * (run.rank + 1)).reshape(-1, 2) + 10 * run.rank
    result = run.gather(
        {"samples": samples, "number": torch.tensor(float(run.rank)), "text": f"rank {run.rank}"}
    )
    return {
        "samples": result["samples"].tolist(),
        "number": result["number"].tolist(),
        "text": result["text"],
        "is_main": run.is_main,
    }


def fsdp_to_pipeline(folder: str) -> Any:
    """Load weights and optimizer state that FSDP saved into a pipeline."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    def make(strategy: Any) -> Any:
        network = model()
        return legroom.parallel(
            network,
            torch.optim.SGD(
                [each for name, each in network.named_parameters() if "unused" not in name], 0.1, 0.9
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
    continued = steps(first)

    second = make("pipeline")
    weights, state = get_state_dict(second.module, second.optimizer)
    loaded = {"model": weights, "optimizer": state}
    dcp.load(loaded, checkpoint_id=folder)
    set_state_dict(
        second.module,
        second.optimizer,
        model_state_dict=loaded["model"],
        optim_state_dict=loaded["optimizer"],
    )
    return continued, steps(second)


def rejected(strategy: str, options: dict[str, Any]) -> str:
    network = model()
    try:
        legroom.parallel(network, torch.optim.SGD(network.parameters(), lr=0.1), strategy, **options)  # type: ignore[arg-type]
    except (legroom.errors.LegroomError, RuntimeError) as error:
        return str(error)
    return ""


def unused_without_batch(options: dict[str, Any]) -> str:
    """Run two DDP steps with an unused layer. Legroom gets no batch, so it cannot detect the layer."""
    network = model()
    run = legroom.parallel(network, torch.optim.SGD(network.parameters(), lr=0.1), "ddp", **options)
    x, y = (each.to(run.device) for each in data()[:4])
    try:
        for _ in range(2):
            run.step(lambda x, y: loss_of(run.model(x), y), x, y)
    except legroom.errors.UsageError as error:
        return str(error)
    return ""


def peaks(strategy: str) -> tuple[int, int, str, list[float]]:
    """Train on a virtual GPU. Returns the measured and the predicted peak, the strategy and the shares."""
    torch.manual_seed(0)
    network = nn.Sequential(
        *[part for _ in range(6) for part in (nn.Linear(512, 512), nn.ReLU())], nn.Linear(512, 4)
    )
    batch = (torch.randn(256, 512), torch.zeros(256, dtype=torch.long))
    torch.cuda.reset_peak_memory_stats()
    run = legroom.parallel(network, torch.optim.AdamW(network.parameters()), strategy, batch=batch)  # type: ignore[arg-type]
    dataset = TensorDataset(*batch)
    for _ in range(3):
        for x, y in run.loader(dataset, 256):
            run.step(lambda x, y: nn.functional.cross_entropy(run.model(x), y), x, y)
    plan = run.choice.plan
    predicted = plan.balance.peaks[run.rank] if plan is not None else 0
    return torch.cuda.max_memory_allocated(), predicted, run.strategy, run._engine.shares
