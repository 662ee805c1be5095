"""Tasks that each rank runs in the tests of Guard with several ranks, on virtual GPUs of different sizes."""

import logging
from typing import Any

import torch
import torch.distributed as dist
from bench.guard.rank_failures import batch, build
from bench.lib import rank_pool
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import legroom

WIDTH, BATCH_SIZE = 64, 8192


def model_of(kind: str) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(
        *(
            nn.Sequential(nn.Linear(WIDTH, 8 * WIDTH), nn.GELU(), nn.Linear(8 * WIDTH, WIDTH))
            for _ in range(2)
        )
    ).cuda()
    if kind == "ddp":
        return DistributedDataParallel(model)
    for block in model:
        fully_shard(block)
    return fully_shard(model)


def small_and_large_gpu(kind: str) -> Any:
    """Run three steps whose batch fits only the larger GPU."""
    logging.getLogger("legroom").setLevel(logging.ERROR)
    model = model_of(kind)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    guard = legroom.Guard(model, optimizer)
    steps = []
    for step in range(3):
        torch.manual_seed(10 * step + dist.get_rank())
        x = torch.randn(BATCH_SIZE, WIDTH, device="cuda")
        guard.step(lambda x: model(x).square().mean(), x)
        assert guard.last_step is not None
        steps.append((guard.last_step.split, guard.last_step.attempts))
    full = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return steps, [tensor.detach().double().sum().item() for tensor in full]


def fewer_samples_than_passes() -> Any:
    """Run a step in which rank 0 has 8 samples in 8 passes. Rank 1 has 2 samples, so 6 of its passes must have weight
    0."""
    logging.getLogger("legroom").setLevel(logging.ERROR)
    model = model_of("fsdp")
    guard = legroom.Guard(model, torch.optim.SGD(model.parameters(), lr=0.0), max_micro_batch_size=1)
    torch.manual_seed(dist.get_rank())
    x = torch.randn([8, 2][dist.get_rank()], WIDTH, device="cuda")
    guard.backward(lambda x: model(x).square().mean(), x)
    gradients = [p.grad.full_tensor().clone() for p in model.parameters()]
    assert guard.last_step is not None
    split = guard.last_step.split
    model.zero_grad()
    model(x).square().mean().backward()
    difference = max(
        ((ours - p.grad.full_tensor()).abs().max() / p.grad.full_tensor().abs().max()).item()
        for ours, p in zip(gradients, model.parameters(), strict=True)
    )
    return split, difference


def tokens_counted_over_ranks() -> list[float]:
    """Return the gradient of a mean over 12 tokens, 3 on rank 0 and 9 on rank 1."""
    model = DistributedDataParallel(nn.Linear(1, 1, bias=False).cuda())
    with torch.no_grad():
        model.module.weight.fill_(1.0)
    guard = legroom.Guard(
        model, torch.optim.SGD(model.parameters(), lr=1.0), weight=lambda x: float((x != 0).sum())
    )
    tokens = [3, 9][dist.get_rank()]
    x = torch.full((tokens, 1), [1.0, 5.0][dist.get_rank()], device="cuda")
    guard.backward(lambda x: model(x).mean(), x)
    return model.module.weight.grad.flatten().tolist()


def nothing_fits(kind: str) -> str:
    """Train with a single sample that does not fit one of the GPUs."""
    logging.getLogger("legroom").setLevel(logging.CRITICAL)
    model = model_of(kind)
    guard = legroom.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), fallbacks=())

    def loss_fn(x: torch.Tensor) -> torch.Tensor:
        return model(x).mean() + torch.zeros((120 << 20) // 4, device="cuda").sum()

    try:
        guard.step(loss_fn, torch.randn(2, WIDTH, device="cuda"))
    except legroom.errors.LegroomError as error:
        return type(error).__name__
    return "fitted"


def unequal_loaders(kind: str) -> Any:
    """Train with three batches on rank 0 and one batch on rank 1. Returns the number of steps, the losses and the
    parameters."""
    model = model_of(kind)
    guard = legroom.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1))
    torch.manual_seed(dist.get_rank())
    batches = [torch.randn(4, WIDTH, device="cuda") for _ in range([3, 1][dist.get_rank()])]
    losses = [guard.step(lambda x: model(x).square().mean(), x).item() for x in guard.join(batches)]
    full = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return len(losses), losses[1:], [tensor.detach().double().sum().item() for tensor in full]


def odd_batch_with_batch_norm(kind: str) -> Any:
    """Run a step in which rank 0 has 6 samples in three passes. Rank 1 has 5 samples. With three passes, one of them
    would pass a single sample to batch norm."""
    logging.getLogger("legroom").setLevel(logging.CRITICAL)
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)).cuda()
    model = DistributedDataParallel(model) if kind == "ddp" else fully_shard(model)
    guard = legroom.Guard(
        model, torch.optim.SGD(model.parameters(), lr=0.1), max_micro_batch_size=2, coupling="ignore"
    )
    x = torch.randn([6, 5][dist.get_rank()], 8, device="cuda")
    loss = guard.step(lambda x: model(x).square().mean(), x)
    assert guard.last_step is not None
    return guard.last_step.split, bool(torch.isfinite(loss))


def evaluated(kind: str) -> Any:
    """Run an evaluation that fits only on rank 1 during gradient accumulation, and then a training step."""
    logging.getLogger("legroom").setLevel(logging.CRITICAL)
    model = model_of(kind)
    norm = nn.BatchNorm1d(WIDTH).cuda()  # DDP broadcasts its buffers in every forward pass
    if kind == "ddp":
        model = DistributedDataParallel(nn.Sequential(model.module, norm))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    guard = legroom.Guard(model, optimizer)
    model.train()
    small = torch.ones(4, WIDTH, device="cuda")
    guard.backward(lambda x: model(x).square().mean(), small)
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.eval()
    torch.manual_seed(dist.get_rank())
    x = torch.randn(3 * BATCH_SIZE + dist.get_rank(), WIDTH, device="cuda")
    scores = guard.evaluate(model, x)
    again = torch.cat([guard.evaluate(model, part) for part in x[: 3 * BATCH_SIZE].split(BATCH_SIZE // 2)])
    kept = all(
        torch.equal(ours.to_local() if hasattr(ours, "to_local") else ours, p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad)
        for ours, p in zip(gradients, model.parameters(), strict=True)
    )  # fmt: skip
    model.train()
    guard.step(lambda x: model(x).square().mean(), small)
    return scores.shape[0] - 3 * BATCH_SIZE, torch.allclose(scores[: 3 * BATCH_SIZE], again, atol=1e-5), kept


def evaluated_from_loaders() -> Any:
    """Evaluate three batches on rank 0 and two on rank 1, which fit only on rank 1, and then run a training step."""
    logging.getLogger("legroom").setLevel(logging.CRITICAL)
    model = model_of("fsdp")
    torch.manual_seed(dist.get_rank())
    batches = [torch.randn(3 * BATCH_SIZE, WIDTH) for _ in range(3 - dist.get_rank())]
    sizes = []

    def predict(x: torch.Tensor) -> torch.Tensor:
        sizes.append(len(x))
        return model(x)

    scores = legroom.evaluate(model, batches, predict)
    parts = [part for batch in batches for part in batch.split(BATCH_SIZE // 2)]
    others = legroom.evaluate(model, parts)
    guard = legroom.Guard(model, torch.optim.SGD(model.parameters(), lr=0.0))
    guard.step(lambda x: model(x).square().mean(), torch.ones(4, WIDTH, device="cuda"))
    return (
        max(sizes[1:]) < 3 * BATCH_SIZE,
        len(scores) // BATCH_SIZE,
        torch.allclose(scores, others, atol=1e-5),
    )


def evaluated_by_one_rank() -> float | None:
    """Evaluate a DDP model on rank 1 without a buffer broadcast, while rank 0 waits."""
    model = DistributedDataParallel(nn.BatchNorm1d(WIDTH).cuda())
    scores = None
    if dist.get_rank() == 1:
        scores = legroom.evaluate(model, [torch.ones(4, WIDTH)] * 3, lambda x: model(x).mean())
    dist.barrier()
    model(torch.ones(4, WIDTH, device="cuda")).mean().backward()
    return scores


def evaluation_that_does_not_fit() -> str:
    """Evaluate a single sample that does not fit on rank 0."""
    logging.getLogger("legroom").setLevel(logging.CRITICAL)
    model = model_of("fsdp")
    guard = legroom.Guard(model, torch.optim.SGD(model.parameters(), lr=0.0))

    def predict(x: torch.Tensor) -> torch.Tensor:
        torch.empty((180 << 20) // 4, device="cuda")
        return model(x)

    try:
        guard.evaluate(predict, torch.ones(4, WIDTH, device="cuda"))
    except torch.OutOfMemoryError as error:
        return str(error)
    return "fitted"


def evaluated_with_an_error() -> str:
    """Evaluate with a function that raises another error on rank 1."""
    model = model_of("fsdp")
    guard = legroom.Guard(model, torch.optim.SGD(model.parameters(), lr=0.0))

    def predict(x: torch.Tensor) -> torch.Tensor:
        scores = model(x)
        if dist.get_rank() == 1:
            raise ValueError("label 7 is out of range")
        return scores

    try:
        guard.evaluate(predict, torch.ones(4, WIDTH, device="cuda"))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def optimizer_failure(kind: str, fails: bool, recovers: bool) -> tuple[str, list[float]]:
    """Run a step in which the optimizer of rank 0 runs out of memory. Without `recovers`, the optimizer runs without
    Guard. Returns the error and the local weights."""
    model, optimizer = build(kind)
    guard = legroom.Guard(model, optimizer)
    x, y = batch()
    guard.backward(lambda x, y: nn.functional.cross_entropy(model(x), y), x, y)
    if fails and dist.get_rank() == 0:
        rank_pool.virtual_gpu.fail_allocation(2)
    error = ""
    try:
        if recovers:
            guard.optimizer_step()
        else:
            optimizer.step()
    except torch.OutOfMemoryError as failure:
        error = type(failure).__name__
    local = [getattr(each, "_local_tensor", each).detach() for each in model.parameters()]
    return error, torch.cat([each.flatten() for each in local]).tolist()
