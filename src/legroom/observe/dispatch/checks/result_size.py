"""Predicts the memory that an operation allocates for its results, before the operation runs.

A virtual GPU computes on the CPU. If the results of an operation are far too large for the GPU, computing them could
exhaust host memory before the allocator rejects the results. The size comes from an evaluation on torch's `meta`
device, which computes shapes only. Evaluations are cached. If a rough upper bound shows that the results fit, the
evaluation is skipped.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from legroom.observe.dispatch.storages import storage_of

LARGEST_ELEMENT = 16
"""The size in bytes of complex128, the largest element type."""


class ResultSizes:
    def __init__(self) -> None:
        self._known: dict[Any, int] = {}

    def new_bytes(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any] | None, room: int) -> int:
        """Return the size in bytes of the results that share no memory with an input. Return 0 if the results certainly
        need at most `room` bytes, or if their size is unknown.
        """
        if upper_bound(args) * LARGEST_ELEMENT <= room:
            return 0
        kwargs = kwargs or {}
        try:
            key = (func, *map(_described, args), *((name, _described(kwargs[name])) for name in kwargs))
            known = self._known.get(key)
        except TypeError:  # an argument that cannot be hashed
            key, known = None, None
        if known is None:
            known = _evaluated(func, args, kwargs)
            if key is not None:
                self._known[key] = known
        return known if known > room else 0


def upper_bound(args: Sequence[Any]) -> float:
    bound: float = 1
    has_tensor = False
    for argument in args:
        if isinstance(argument, torch.Tensor):
            bound *= argument.numel() or 1
            has_tensor = True
        elif isinstance(argument, list | tuple):
            tensors = 0
            for each in argument:
                if isinstance(each, torch.Tensor):
                    tensors += each.numel()
                elif isinstance(each, int | float) and abs(each) > 1:
                    bound *= abs(each)
            if tensors:
                bound *= tensors
                has_tensor = True
        elif isinstance(argument, int | float) and abs(argument) > 1:
            bound *= abs(argument)
    return bound if has_tensor else bound * bound  # `eye(n)` has n² elements


def _described(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        return (argument.shape, argument.dtype)
    if isinstance(argument, list | tuple):
        return tuple(map(_described, argument))
    return argument


def _evaluated(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> int:
    """Return the size in bytes of the new storages among the results, or 0 if torch cannot evaluate the shapes."""
    inputs: set[int] = set()

    def on_meta(tensor: torch.Tensor) -> torch.Tensor:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
            raise NotImplementedError
        base = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        inputs.add(base.untyped_storage()._cdata)
        return base

    try:
        meta_args, meta_kwargs = tree_map_only(torch.Tensor, on_meta, (tuple(args), kwargs))
        if "device" in meta_kwargs or not inputs:
            meta_kwargs["device"] = torch.device("meta")
        results = func(*meta_args, **meta_kwargs)
    except (
        Exception
    ):  # no meta kernel, a shape that depends on data, an error that the operation itself will raise
        return 0
    new: dict[int, int] = {}
    for result in results if isinstance(results, list | tuple) else (results,):
        if isinstance(result, torch.Tensor):
            storage = storage_of(result)  # the values of a sparse tensor, None for other layouts
            if storage is not None and storage._cdata not in inputs:
                new[storage._cdata] = storage.nbytes()
    return sum(new.values())
