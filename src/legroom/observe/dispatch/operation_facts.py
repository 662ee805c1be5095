"""Properties of an operation that the recorder needs before and after the operation runs, determined once per
operation.
"""

from typing import Any

import torch
from torch._ops import OpOverload

from legroom.observe.dispatch.checks import device_mismatch
from legroom.observe.dispatch.operations import overloads


class OperationFacts:
    __slots__ = (
        "call",
        "changes_list",
        "checks_in_place",
        "device_position",
        "func",
        "is_detach",
        "is_silent",
        "is_silent_on_host",
        "last_result_on_host",
        "only_aliases",
        "resizes",
    )

    def __init__(self, func: Any) -> None:
        self.func = func
        """The operation, stored so that its `id` is not reused."""
        self.call = _fast_call(func)
        self.only_aliases = _only_aliases(func)
        """True if every result shares the memory of an input, as in views and in-place operations."""
        self.is_detach = id(func) in _DETACH
        self.resizes = id(func) in _RESIZING
        self.checks_in_place = id(func) in device_mismatch.IN_PLACE
        """True if the operation allocates nothing but rejects inputs on several devices."""
        self.last_result_on_host = id(func) in device_mismatch.LAST_RESULT_ON_HOST
        self.device_position = _device_position(func)
        """The position of the argument `device`, or None. Only operators that a library registered may have such a
        position. PyTorch's own operators accept `device` by name only.
        """
        self.changes_list = _name(func).startswith("aten::_foreach_") and _name(func).endswith("_")
        """True if the operation changes a list of tensors in place (`_foreach_add_`). CUDA kernels increment the
        version counters of these tensors, but the CPU kernels that run below a dispatch mode do not.
        """
        self.is_silent_on_host = not (self.is_detach or self.resizes)
        """True if the recorder can skip the operation in a run in host memory, provided that its result is in a
        recorded storage.
        """
        self.is_silent = self.is_silent_on_host and not self.checks_in_place
        """True if the recorder can skip the operation in a run on a virtual GPU, provided that its result is in a
        recorded storage.
        """


FACTS: dict[int, OperationFacts] = {}
"""The properties of each operation, by `id`. Hashing an operation calls into Python, so the operations themselves are
not used as keys.
"""


def facts_of(func: Any) -> OperationFacts:
    known = FACTS.get(id(func))
    if known is None:
        known = FACTS[id(func)] = OperationFacts(func)
    return known


def _fast_call(func: Any) -> Any:
    """Return the fastest function that runs this operation with the arguments of `__torch_dispatch__`.

    The generic function of an operation reads its arguments according to a schema, which takes longer than a small
    kernel. Calling the operation through `_op`, which is private to torch, saves a call to a Python function.
    """
    if type(func) is not OpOverload:
        return func
    return _FUNCTIONS.get(func) or getattr(func, "_op", func)


def _only_aliases(func: Any) -> bool:
    schema = getattr(func, "_schema", None)
    returns = getattr(schema, "returns", None)
    return returns is not None and all(each.alias_info is not None for each in returns)


def _name(func: Any) -> str:
    schema = getattr(func, "_schema", None)
    return "" if schema is None else str(schema.name)


def _device_position(func: Any) -> int | None:
    if type(func) is not OpOverload or func.namespace == "aten":
        return None
    for position, argument in enumerate(func._schema.arguments):
        if argument.name == "device" and not argument.kwarg_only:
            return position
    return None


_DETACH = overloads("detach")
_RESIZING = overloads("resize_", "resize_as_", "set_")


def _functions() -> dict[Any, Any]:
    # A program may replace functions in public modules, so these are not used.
    found: dict[Any, Any] = {}
    for module, names in (
        (getattr(torch._C, "_VariableFunctions", None), _OF_TORCH),
        (torch._C.TensorBase, _OF_TENSOR),
        (getattr(torch._C, "_nn", None), _OF_NN),
    ):
        for name, overload in (each.split(".") for each in names.split()):
            function = getattr(module, name, None)
            operation = getattr(getattr(torch.ops.aten, name, None), overload, None)
            if function is not None and operation is not None:
                found[operation] = function
    return found


_OF_TORCH = """t.default mm.default bmm.default addmm.default baddbmm.default add.Tensor sub.Tensor mul.Tensor div.Tensor neg.default
    relu.default tanh.default sigmoid.default exp.default log.default sqrt.default rsqrt.default sum.default sum.dim_IntList
    mean.default mean.dim transpose.int permute.default unsqueeze.default select.int cat.default clone.default detach.default
    ones_like.default zeros_like.default empty_like.default zeros.default ones.default empty.memory_format full.default
    rand.default randn.default embedding.default native_layer_norm.default convolution.default _softmax.default
    _log_softmax.default"""
_OF_TENSOR = (
    "view.default expand.default add_.Tensor sub_.Tensor mul_.Tensor div_.Tensor copy_.default zero_.default"
)
_OF_NN = "gelu.default"
_FUNCTIONS = _functions()
