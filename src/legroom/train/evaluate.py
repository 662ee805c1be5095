"""Evaluation that keeps no graph, survives a full GPU, and leaves the model as it was.

    scores = legroom.evaluate(model, loader, lambda x, y: {
        "loss": F.cross_entropy(model(x), y),
        "accuracy": (model(x).argmax(1) == y).float().mean(),
    })
    scores["accuracy"]                          # over all rows, however unequal the batches

Always without gradients and in evaluation mode. When memory is short a batch is taken in pieces, at last on the host, as
`Guard.evaluate` does. Results wait in host memory, not on the device. The ranks of a sharded model take their batches in the
same pieces, and one that has fewer batches waits for the others.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from legroom.errors import UsageError
from legroom.train.guarding.batches.splitting import Batch, joined, moved
from legroom.train.guarding.evaluation import Evaluation
from legroom.train.ranks.coordination import AgreedRanks, Alone

_HOST = torch.device("cpu")


def evaluate(
    model: nn.Module,
    loader: Iterable[Any],
    function: Callable[..., Any] | None = None,
    *,
    max_micro_batch: int | None = None,
    batch_dim: int = 0,
    whole: Iterable[int | str] = (),
) -> Any:
    """What `function(*batch)` gives for all batches of a loader together: entries per row are put one after the other, single
    numbers become the mean over all rows, and containers of these are gone through.

    Without a function, the model's outputs: of a batch `(x, y)` it gets `x`, of a dict all entries by name. Batches are
    moved to where the model is. `max_micro_batch`, `batch_dim`, `whole`: as in Guard. Each rank evaluates its own loader.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"evaluate needs the model first, an nn.Module; it got a {type(model).__name__}: evaluate(model, loader, function)"
        )
    if function is not None and not callable(function):
        raise UsageError(f"the third argument is a function of a batch, not a {type(function).__name__}")
    device = _device(model)
    asked = function or (lambda *batch: _outputs(model, batch))

    def here(*batch: Any) -> Any:
        return asked(*moved(batch, _device(model)))  # the model may be on the host just now

    results: list[Any] = []
    rows: list[int] = []

    def noted() -> Iterator[tuple[Any, ...]]:
        for batch in loader:
            arguments = tuple(batch) if isinstance(batch, list | tuple) else (batch,)
            rows.append(Batch(arguments, {}, batch_dim, frozenset(whole)).rows)
            yield arguments

    with _evaluating(model), _ranks(model) as ranks:
        evaluation = Evaluation(model, device, max_micro_batch, batch_dim, frozenset(whole), ranks)
        for arguments in ranks.together(noted()):
            result = moved(evaluation.evaluate(here, arguments, {}), _HOST)
            if len(results) < len(rows):  # else the others have more batches, and this was the last one again
                results.append(result)
    if not results:
        raise UsageError("the loader gave no batch: there is nothing to evaluate")
    return _plain(joined(results, rows, batch_dim))


def _ranks(model: nn.Module) -> AbstractContextManager[AgreedRanks]:
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return nullcontext(Alone())
    from legroom.train.ranks.agree import ranks_for_evaluation

    return ranks_for_evaluation(model)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Every module is in evaluation mode inside, and in its own again afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _outputs(model: nn.Module, batch: tuple[Any, ...]) -> Any:
    return model(**batch[0]) if isinstance(batch[0], Mapping) else model(batch[0])


def _device(model: nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), _HOST)


def _plain(value: Any) -> Any:
    """Single numbers as Python's."""
    if isinstance(value, torch.Tensor):
        return value.item() if value.dim() == 0 else value
    if type(value) in (list, tuple):
        return type(value)(_plain(item) for item in value)
    if type(value) is dict:
        return {key: _plain(item) for key, item in value.items()}
    return value
