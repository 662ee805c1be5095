"""What each rank does in the tests of Guard with several ranks: each has a virtual GPU of its own size."""

import logging
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import legroom

WIDTH, ROWS = 256, 2048


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
    """Three steps whose batch fits the larger GPU only."""
    logging.getLogger("legroom").setLevel(logging.ERROR)
    model = model_of(kind)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    guard = legroom.Guard(model, optimizer)
    told = []
    for step in range(3):
        torch.manual_seed(10 * step + dist.get_rank())
        x = torch.randn(ROWS, WIDTH, device="cuda")
        guard.step(lambda x: model(x).square().mean(), x)
        assert guard.last is not None
        told.append((guard.last.split, guard.last.attempts))
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return told, [tensor.detach().double().sum().item() for tensor in whole]


def fewer_rows_than_pieces() -> Any:
    """Rank 1 has 2 rows where rank 0 has 8 and takes one at a time: what does not exist must not count."""
    logging.getLogger("legroom").setLevel(logging.ERROR)
    model = model_of("fsdp")
    guard = legroom.Guard(model, torch.optim.SGD(model.parameters(), lr=0.0), max_micro_batch=1)
    torch.manual_seed(dist.get_rank())
    x = torch.randn([8, 2][dist.get_rank()], WIDTH, device="cuda")
    guard.backward(lambda x: model(x).square().mean(), x)
    gradients = [p.grad.full_tensor().clone() for p in model.parameters()]
    assert guard.last is not None
    split = guard.last.split
    model.zero_grad()
    model(x).square().mean().backward()
    apart = max(
        ((ours - p.grad.full_tensor()).abs().max() / p.grad.full_tensor().abs().max()).item()
        for ours, p in zip(gradients, model.parameters(), strict=True)
    )
    return split, apart


def tokens_counted_over_ranks() -> list[float]:
    """Rank 0's batch has 3 tokens, rank 1's 9: the gradient of a mean over all 12."""
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
    """One row is too much for one of the GPUs, by any means."""
    logging.getLogger("legroom").setLevel(logging.CRITICAL)
    model = model_of(kind)
    guard = legroom.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), ladder=())

    def greedy(x: torch.Tensor) -> torch.Tensor:
        need = (120 << 20) // 4
        return model(x).mean() + torch.zeros(need, device="cuda").sum()

    try:
        guard.step(greedy, torch.randn(2, WIDTH, device="cuda"))
    except legroom.errors.LegroomError as error:
        return type(error).__name__
    return "fitted"


def unequal_loaders(kind: str) -> Any:
    """Rank 0 has three batches, rank 1 has one: parameters after all of them, and how many steps were made."""
    model = model_of(kind)
    guard = legroom.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1))
    torch.manual_seed(dist.get_rank())
    batches = [torch.randn(4, WIDTH, device="cuda") for _ in range([3, 1][dist.get_rank()])]
    losses = [guard.step(lambda x: model(x).square().mean(), x).item() for x in guard.together(batches)]
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return len(losses), losses[1:], [tensor.detach().double().sum().item() for tensor in whole]


def odd_rows_with_batch_norm(kind: str) -> Any:
    """Rank 0 has 6 rows in three pieces, rank 1 has 5: three pieces of these would leave one row to normalise by."""
    logging.getLogger("legroom").setLevel(logging.CRITICAL)
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)).cuda()
    model = DistributedDataParallel(model) if kind == "ddp" else fully_shard(model)
    guard = legroom.Guard(
        model, torch.optim.SGD(model.parameters(), lr=0.1), max_micro_batch=2, coupling="per-chunk"
    )
    x = torch.randn([6, 5][dist.get_rank()], 8, device="cuda")
    loss = guard.step(lambda x: model(x).square().mean(), x)
    assert guard.last is not None
    return guard.last.split, bool(torch.isfinite(loss))


def evaluated(kind: str) -> Any:
    """An evaluation that fits rank 1 alone, in the middle of an accumulation, and a training step after it."""
    logging.getLogger("legroom").setLevel(logging.CRITICAL)
    model = model_of(kind)
    norm = nn.BatchNorm1d(WIDTH).cuda()  # its buffers are what DDP would send around in every forward pass
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
    x = torch.randn(3 * ROWS + dist.get_rank(), WIDTH, device="cuda")
    scores = guard.evaluate(model, x)
    again = torch.cat([guard.evaluate(model, piece) for piece in x[: 3 * ROWS].split(ROWS // 2)])
    kept = all(
        torch.equal(ours.to_local() if hasattr(ours, "to_local") else ours, p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad)
        for ours, p in zip(gradients, model.parameters(), strict=True)
    )  # fmt: skip
    model.train()
    guard.step(lambda x: model(x).square().mean(), small)
    return scores.shape[0] - 3 * ROWS, torch.allclose(scores[: 3 * ROWS], again, atol=1e-5), kept


def evaluated_from_loaders() -> Any:
    """Batches that fit rank 1 alone, three of them on rank 0 and two on rank 1, and a training step after them."""
    logging.getLogger("legroom").setLevel(logging.CRITICAL)
    model = model_of("fsdp")
    torch.manual_seed(dist.get_rank())
    batches = [torch.randn(3 * ROWS, WIDTH) for _ in range(3 - dist.get_rank())]
    sizes = []

    def look(x: torch.Tensor) -> torch.Tensor:
        sizes.append(len(x))
        return model(x)

    scores = legroom.evaluate(model, batches, look)
    pieces = [piece for batch in batches for piece in batch.split(ROWS // 2)]
    others = legroom.evaluate(model, pieces)
    guard = legroom.Guard(model, torch.optim.SGD(model.parameters(), lr=0.0))
    guard.step(lambda x: model(x).square().mean(), torch.ones(4, WIDTH, device="cuda"))
    return max(sizes[1:]) < 3 * ROWS, len(scores) // ROWS, torch.allclose(scores, others, atol=1e-5)


def evaluated_by_one_rank() -> float | None:
    """Rank 1 evaluates a DDP model, which would take its buffers from rank 0 first; rank 0 waits for the end of it."""
    model = DistributedDataParallel(nn.BatchNorm1d(WIDTH).cuda())
    scores = None
    if dist.get_rank() == 1:
        scores = legroom.evaluate(model, [torch.ones(4, WIDTH)] * 3, lambda x: model(x).mean())
    dist.barrier()
    model(torch.ones(4, WIDTH, device="cuda")).mean().backward()
    return scores


def evaluated_in_vain() -> str:
    """One row does not fit rank 0."""
    logging.getLogger("legroom").setLevel(logging.CRITICAL)
    model = model_of("fsdp")
    guard = legroom.Guard(model, torch.optim.SGD(model.parameters(), lr=0.0))

    def wasteful(x: torch.Tensor) -> torch.Tensor:
        torch.empty((180 << 20) // 4, device="cuda")
        return model(x)

    try:
        guard.evaluate(wasteful, torch.ones(4, WIDTH, device="cuda"))
    except torch.OutOfMemoryError as error:
        return str(error)
    return "fitted"


def evaluated_with_an_error() -> str:
    """Rank 1's function raises something of its own."""
    model = model_of("fsdp")
    guard = legroom.Guard(model, torch.optim.SGD(model.parameters(), lr=0.0))

    def picky(x: torch.Tensor) -> torch.Tensor:
        scores = model(x)
        if dist.get_rank() == 1:
            raise ValueError("label 7 is out of range")
        return scores

    try:
        guard.evaluate(picky, torch.ones(4, WIDTH, device="cuda"))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "went well"
