"""Checks operations with tensors on different devices. CUDA supports some operations of this kind, and rejects all
others.

The tensors of a virtual GPU are CPU tensors, so only this check prevents a program from mixing device tensors with host
tensors. Mixing devices is the most common mistake in code that was never run on a GPU.

PyTorch checks the inputs of an operation, but not the operations inside it. A composite operation moves its own
intermediate results to the right device (`lengths.to(log_probs.device)`). On a virtual GPU, all tensors are CPU
tensors, so this move runs no copy operation. An operation that mixes devices is therefore an error only if the *call*
in the program mixes devices as well.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from legroom.observe.dispatch.operations import overloads

CROSS_DEVICE = overloads(
    # copies between devices, and operations that take host lengths or split positions together with device data
    "copy_", "_to_copy", "copy", "_copy_from", "_foreach_copy_", "_foreach_copy", "_pack_padded_sequence",
    "_pack_padded_sequence_backward", "_ctc_loss", "_ctc_loss_backward", "tensor_split", "set_", "_pin_memory",
    "_reshape_alias", "lift_fresh", "_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_",
    "_foreach_add_", "_amp_update_scale_",
)  # fmt: skip
_INDEXING = overloads(
    "index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"
)
_REJECT_HOST_SCALARS = overloads("cat", "stack", "_foreach_norm")
"""Operations that reject a zero-dimensional host tensor if another argument is a device tensor. All other operations
treat a zero-dimensional host tensor as a number.
"""
IN_PLACE = overloads(
    "equal", "allclose", "add_", "sub_", "mul_", "div_", "addcmul_", "addcdiv_", "lerp_", "masked_fill_", "masked_scatter_", "index_add_",
    "index_copy_", "scatter_", "scatter_add_", "scatter_reduce_", "addmm_", "baddbmm_", "eq_", "pow_", "index_put_",
    "_index_put_impl_",
)  # fmt: skip
"""Operations, most of them in-place operations, that allocate no storage but whose inputs are also checked."""
LAST_RESULT_ON_HOST = overloads("_pack_padded_sequence")
"""Operations whose last result is in host memory, regardless of the device of their inputs."""
_ACCEPT_HOST_LENGTHS = frozenset(("ctc_loss", "lstm", "gru", "rnn_tanh", "rnn_relu", "_pad_packed_sequence"))
"""Functions that accept integer lengths on the host together with device data."""
_ACCEPT_MIXED_DEVICES = frozenset(("backward", "grad", "apply", "__get__", "__set__"))


def check(
    func: Any,
    args: Any,
    tensors: Iterable[torch.Tensor],
    device_of: Callable[[torch.Tensor], int | None],
    call: tuple[Any, Iterable[torch.Tensor]] | None,
) -> None:
    """Raise the same error as torch if the operation `func(*args)`, whose inputs are `tensors`, mixes devices.

    `call` is the function that the program called, with its tensors, or None if the function is unknown.
    """
    if id(func) in CROSS_DEVICE or call is None:
        return
    name = getattr(call[0], "__name__", "")
    if name in _ACCEPT_MIXED_DEVICES:
        return
    call_tensors = call[1]
    if name in _ACCEPT_HOST_LENGTHS:
        call_tensors = [tensor for tensor in call_tensors if tensor.is_floating_point()]
    if id(func) in _INDEXING:
        _check_indexing(args, device_of, call_tensors)
        return
    scalars_allowed = id(func) not in _REJECT_HOST_SCALARS
    mixed = _mixed_devices(tensors, device_of, scalars_allowed)
    if mixed is not None and _mixed_devices(call_tensors, device_of, scalars_allowed) is not None:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{_name(mixed[0])} and {_name(mixed[1])}!"
        )


def _mixed_devices(
    tensors: Iterable[torch.Tensor], device_of: Callable[[torch.Tensor], int | None], scalars_allowed: bool
) -> tuple[int | None, int | None] | None:
    device: int | None = None
    host = False
    for tensor in tensors:
        current = device_of(tensor)
        if current is None:
            host = host or not scalars_allowed or tensor.dim() > 0
        elif device is None:
            device = current
        elif current != device:
            return device, current
    return (device, None) if host and device is not None else None


def _check_indexing(
    args: Any, device_of: Callable[[torch.Tensor], int | None], call_tensors: Iterable[torch.Tensor]
) -> None:
    """Check the devices of an indexing operation. A device tensor accepts indices on the host. A host tensor accepts
    only indices on the host. Values must be on the same device as the tensor.

    Inside `vmap`, an assigned number becomes a host tensor with dimensions, which is allowed because the user's call
    contains no host tensor.
    """
    indexed, indices = device_of(args[0]), args[1]
    for index in indices:
        device = None if index is None else device_of(index)
        if device is not None and device != indexed:
            raise RuntimeError(
                f"indices should be either on cpu or on the same device as the indexed tensor ({_name(indexed)})"
            )
    values = args[2] if len(args) > 2 and isinstance(args[2], torch.Tensor) else None
    if values is None or device_of(values) == indexed or not values.dim():
        return
    if _mixed_devices(call_tensors, device_of, scalars_allowed=True) is not None:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{_name(indexed)} and {_name(device_of(values))}!"
        )


def _name(device: int | None) -> str:
    return "cpu" if device is None else f"cuda:{device}"
