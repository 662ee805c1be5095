"""Parameters of lazy modules (`nn.LazyLinear`) in a run without data.

Such a parameter is an empty tensor of a class of its own until the first forward pass tells its shape; then torch gives it
memory and another class, in place. Until then it stays real (fake mode does not know its class, and it holds nothing); a
real tensor cannot be given data-less memory in place, so then the two change places instead.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from legroom.observe.virtual.patching import replaced, table

_parameter: Any = nn.parameter


@contextlib.contextmanager
def lazy_parameters_without_data() -> Iterator[None]:
    """While active, what a lazy parameter becomes is a stand-in, like every other parameter."""

    def materialize(tensor: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
        where = tensor.data.device if device is None else device
        made: Any = torch.empty(shape, device=where, dtype=dtype or tensor.data.dtype)
        if issubclass(tensor.cls_to_become, nn.Parameter):
            # Detached first: fake mode keeps a weak reference to the parameter otherwise, and swapping refuses that.
            made = nn.Parameter(made.detach(), requires_grad=tensor.requires_grad)
        torch.utils.swap_tensors(tensor, made)  # type: ignore[no-untyped-call]

    def on_host_first(plain_new: Any) -> Any:
        def new(
            kind: Any, requires_grad: bool = True, device: Any = None, dtype: Any = None, **more: Any
        ) -> Any:
            made = plain_new(kind, requires_grad, None, dtype, **more)
            if device is not None:
                made.data = made.to(device)
            return made

        return staticmethod(new)

    with replaced(
        [
            *table(_parameter.UninitializedTensorMixin, {"materialize": materialize}),
            *(
                replacement
                for kind in (_parameter.UninitializedParameter, _parameter.UninitializedBuffer)
                for replacement in table(kind, {"__new__": on_host_first(kind.__new__)})
            ),
        ]
    ):
        yield
