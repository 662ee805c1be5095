"""Evaluation without gradients that recovers from out-of-memory errors and restores the mode of the model.

    scores = legroom.evaluate(model, loader, lambda x, y: {
        "loss": F.cross_entropy(model(x), y),
        "accuracy": (model(x).argmax(1) == y).float().mean(),
    })
    scores["accuracy"]                          # the mean over all samples, even with batches of different sizes

If memory runs out, the batch is split into micro-batches, as in `Guard.evaluate`. If a single sample does not fit, it
is evaluated on the CPU. Results are kept in host memory. The ranks of a sharded model use the same split. A rank with
fewer batches continues to take part in forward passes until all ranks are done.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from legroom.arguments import check_count, check_names
from legroom.errors import UsageError
from legroom.train.guarding.batches.splitting import BatchArguments, concatenate_results, to_device
from legroom.train.guarding.evaluation import Evaluation
from legroom.train.ranks.protocol import RankCoordinator, SingleProcess

_CPU = torch.device("cpu")


def evaluate(
    model: nn.Module,
    loader: Iterable[Any],
    function: Callable[..., Any] | None = None,
    *,
    max_micro_batch_size: int | None = None,
    batch_dim: int = 0,
    unsplit: Iterable[int | str] = (),
) -> Any:
    """Call `function(*batch)` for all batches of a loader and combine the results.

    Results with a batch dimension are concatenated. Single integers are counts, which are summed. Other single numbers
    are averaged over all samples. Containers are combined item by item. Without a function, the result contains the
    outputs of the model. For a batch `(x, y)`, the model receives `x`. For a dict, the model receives all entries as
    keyword arguments. Batches are moved to the device of the model. `max_micro_batch_size`, `batch_dim` and `unsplit`
    have the same meaning as in Guard. Each rank evaluates its own loader.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"evaluate() expects the model (nn.Module) as its first argument, not {type(model).__name__}: "
            "evaluate(model, loader, function)."
        )
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise UsageError(
            f"evaluate() expects the loader as its second argument, not {type(loader).__name__}: "
            "evaluate(model, loader, function)."
        )
    if function is not None and not callable(function):
        raise UsageError(
            "evaluate() expects a function that takes a batch as its third argument, not "
            f"{type(function).__name__}."
        )
    unsplit = frozenset(check_names("unsplit", unsplit, "['mask']"))
    check_count("batch_dim", batch_dim, minimum=0)
    device = _device(model)
    function = function or (lambda *batch: _outputs(model, batch))

    def on_device(*batch: Any) -> Any:
        return function(*to_device(batch, _device(model)))  # the model may be on the CPU as a last resort

    results: list[Any] = []
    batch_sizes: list[int] = []

    def batches() -> Iterator[tuple[Any, ...]]:
        for batch in loader:
            arguments = tuple(batch) if isinstance(batch, list | tuple) else (batch,)
            batch_sizes.append(BatchArguments(arguments, {}, batch_dim, unsplit).batch_size)
            yield arguments

    with _eval_mode(model), _ranks(model) as ranks:
        evaluation = Evaluation(model, device, max_micro_batch_size, batch_dim, unsplit, ranks)
        for arguments in ranks.join(batches()):
            result = to_device(evaluation.evaluate(on_device, arguments, {}), _CPU)
            if len(results) < len(batch_sizes):  # otherwise a repeated batch, because other ranks have more
                results.append(result)
    if not results:
        raise UsageError("The loader yielded no batches.")
    return _plain(concatenate_results(results, batch_sizes, batch_dim))


def _ranks(model: nn.Module) -> AbstractContextManager[RankCoordinator]:
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return nullcontext(SingleProcess())
    from legroom.train.ranks.coordinator import ranks_for_evaluation

    return ranks_for_evaluation(model)


@contextmanager
def _eval_mode(model: nn.Module) -> Iterator[None]:
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
    return next((parameter.device for parameter in model.parameters()), _CPU)


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.item() if value.dim() == 0 else value
    if type(value) in (list, tuple):
        return type(value)(_plain(item) for item in value)
    if type(value) is dict:
        return {key: _plain(item) for key, item in value.items()}
    return value
