"""Tensors of two devices in one operation: where CUDA allows it, and what it says where it does not.

A virtual GPU's tensors are CPU tensors underneath, so nothing but this check keeps a program from mixing them with
host tensors, which is the commonest mistake in code that was never run on a GPU.

torch checks its operations' inputs, not what happens inside: a composite operation brings its own intermediate results
to the right device (`lengths.to(log_probs.device)`), which down here is no move at all. So an operation that mixes
devices is at fault only if the *call* that the program made mixed them as well.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from legroom.observe.dispatch.operations import overloads

ACROSS = overloads(
    # copies between devices, and operations that take host lengths, or positions to split at, beside device data
    "copy_", "_to_copy", "copy", "_copy_from", "_foreach_copy_", "_foreach_copy", "_pack_padded_sequence",
    "_pack_padded_sequence_backward", "_ctc_loss", "_ctc_loss_backward", "tensor_split", "set_", "_pin_memory",
    "_reshape_alias", "lift_fresh", "_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_",
    "_foreach_add_", "_amp_update_scale_",
)  # fmt: skip
_INDEXING = overloads(
    "index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"
)
_JOINING = overloads("cat", "stack", "_foreach_norm")
"""Operations that take tensors of no dimension as tensors, not as numbers: a host one is no number to them."""
WITHOUT_RESULT = overloads(
    "equal", "allclose", "add_", "sub_", "mul_", "div_", "addcmul_", "addcdiv_", "lerp_", "masked_fill_", "masked_scatter_", "index_add_",
    "index_copy_", "scatter_", "scatter_add_", "scatter_reduce_", "addmm_", "baddbmm_", "eq_", "pow_", "index_put_",
    "_index_put_impl_",
)  # fmt: skip
"""Operations that make no storage, mostly in place, whose inputs are worth a look all the same."""
HOST_LAST = overloads("_pack_padded_sequence")
"""Operations whose last result is host memory wherever their inputs live."""
_TAKE_LENGTHS = frozenset(("ctc_loss", "lstm", "gru", "rnn_tanh", "rnn_relu", "_pad_packed_sequence"))
"""Functions that take lengths, which are whole numbers of the host, beside a device's data."""
_GO_BETWEEN = frozenset(("backward", "grad", "apply", "__get__", "__set__"))
"""Functions that may be given tensors of several devices."""


def check(
    func: Any,
    args: Any,
    tensors: Iterable[torch.Tensor],
    device_of: Callable[[torch.Tensor], int | None],
    call: tuple[Any, Iterable[torch.Tensor]] | None,
) -> None:
    """Raise torch's own sentence if the operation `func(*args)`, whose inputs are `tensors`, mixes devices.

    `call`: the function that the program called and its tensors; None where it called none that is known.
    """
    if id(func) in ACROSS or call is None:
        return
    name = getattr(call[0], "__name__", "")
    if name in _GO_BETWEEN:
        return
    given = call[1]
    if name in _TAKE_LENGTHS:
        given = [tensor for tensor in given if tensor.is_floating_point()]
    if id(func) in _INDEXING:
        _check_indexing(args, device_of)
        return
    numbers_allowed = id(func) not in _JOINING
    met = _met(tensors, device_of, numbers_allowed)
    if met is not None and _met(given, device_of, numbers_allowed) is not None:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{_name(met[0])} and {_name(met[1])}!"
        )


def _met(
    tensors: Iterable[torch.Tensor], device_of: Callable[[torch.Tensor], int | None], numbers_allowed: bool
) -> tuple[int | None, int | None] | None:
    """The first two devices that meet, the host last; None where all is well."""
    device: int | None = None
    host = False
    for tensor in tensors:
        here = device_of(tensor)
        if here is None:
            host = host or not numbers_allowed or tensor.dim() > 0
        elif device is None:
            device = here
        elif here != device:
            return device, here
    return (device, None) if host and device is not None else None


def _check_indexing(args: Any, device_of: Callable[[torch.Tensor], int | None]) -> None:
    """A device's tensor takes indices of the host; a host tensor takes no others; values must be at home."""
    indexed, indices = device_of(args[0]), args[1]
    for index in indices:
        there = None if index is None else device_of(index)
        if there is not None and there != indexed:
            raise RuntimeError(
                f"indices should be either on cpu or on the same device as the indexed tensor ({_name(indexed)})"
            )
    values = args[2] if len(args) > 2 and isinstance(args[2], torch.Tensor) else None
    if values is not None and device_of(values) != indexed and values.dim():
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{_name(indexed)} and {_name(device_of(values))}!"
        )


def _name(device: int | None) -> str:
    return "cpu" if device is None else f"cuda:{device}"
