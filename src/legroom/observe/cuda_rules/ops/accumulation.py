"""Gradients that meet are added in place, where torch's engine may; so are those that are scattered into zeros.

Where two paths of the graph lead to one tensor (every residual connection), the autograd engine adds the second gradient
to the first, in the first one's memory if nothing else holds it (`accumulate` in torch/csrc/autograd/input_buffer.cpp). It
does not dare to while a dispatch mode watches or a tensor is of a subclass, and then makes a third tensor: the watched
run takes memory that the real one does not. Formulas of some gradients do the like: what was selected (`max`, `gather`, `x[index]`) is put into
zeros, in place unless a tensor is of a subclass (`areAnyTensorSubclassLike` in FunctionsManual.cpp). A gradient that is a view, as a linear layer
makes of three dimensions, is never added to: it keeps the tensor that it is a view of, and that the same memory. `instead_of` gives the operation
that would run unwatched.

Whether anything else holds the first of two gradients is read off its reference counts, against those that an unshared one has
here; `Accumulation()` finds these out by a tiny backward pass, so it must be made outside of any operation.
"""

from functools import lru_cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from legroom.observe.dispatch.backward_engine import current_graph_task, current_node, in_backward_pass

_ADD = torch.ops.aten.add.Tensor
_ADD_IN_PLACE = torch.ops.aten.add_.Tensor
_INTO_ZEROS = {
    torch.ops.aten.scatter.src: torch.ops.aten.scatter_.src,
    torch.ops.aten.scatter_add.default: torch.ops.aten.scatter_add_.default,
    torch.ops.aten.index_add.default: torch.ops.aten.index_add_.default,
    torch.ops.aten.index_put.default: torch.ops.aten.index_put_.default,
    torch.ops.aten.masked_scatter.default: torch.ops.aten.masked_scatter_.default,
    torch.ops.aten.put.default: torch.ops.aten.put_.default,
}
_IN_A_FORMULA = {
    torch.ops.aten.sub.Tensor: torch.ops.aten.sub_.Tensor,
    torch.ops.aten.mul.Tensor: torch.ops.aten.mul_.Tensor,
    torch.ops.aten.div.Tensor: torch.ops.aten.div_.Tensor,
    torch.ops.aten.div.Scalar: torch.ops.aten.div_.Scalar,
}
_CHANGES_ITS_OWN = "BinaryCrossEntropyWithLogitsBackward0"
"""The node of a formula that makes a tensor and goes on with it in place (`binary_cross_entropy_with_logits_backward`)."""
_COUNT_EQUALS = frozenset(("ScatterReduceBackward0", "IndexReduceBackward0"))
"""Nodes whose formulas add up how many values are equal, beside the tensor that they add to (`scatter_reduce_backward`)."""
_TWO_GRADIENTS = frozenset(("VarMeanBackward0", "StdMeanBackward0"))
"""Nodes of functions with two results (`var_mean_backward` in FunctionsManual.cpp)."""


class Accumulation:
    """Tells where the engine would add in place."""

    def __init__(self) -> None:
        self._unshared = _counts_of_an_unshared_gradient()
        self._added_up = -1
        """The number of the last node of `_TWO_GRADIENTS` whose own addition was seen."""
        self._begun = (-1, -1)
        """The pass and the number of the last node `_CHANGES_ITS_OWN` that was seen at work."""

    def instead_of(self, func: Any, args: Any, kwargs: dict[str, Any] | None) -> Any:
        """The operation to run: another one only where the engine would add in place, or a formula write into its zeros."""
        if func in _INTO_ZEROS:
            return _INTO_ZEROS[func] if _engine_is_at_work() and _writes_into_zeros(func, args) else func
        if func in _IN_A_FORMULA:
            return _IN_A_FORMULA[func] if _engine_is_at_work() and self._changes_its_own(func) else func
        if func is not _ADD or self._unshared is None or kwargs or len(args) != 2:
            return func
        first, second = args
        if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
            return func
        if first.shape != second.shape or first.dtype != second.dtype or not _dense(first):
            return func
        if not _engine_is_at_work() or first._is_view():  # a view keeps the tensor that it is one of
            return func
        tensor, storage = _counts(first)
        if tensor > self._unshared[0] or storage > self._unshared[1] or self._is_of_a_formula():
            return func
        return _ADD_IN_PLACE

    def _changes_its_own(self, func: Any) -> bool:
        """Whether a formula goes on with a tensor that it made; a product that it begins with is the weights', and makes it."""
        node = current_node()
        if node is None or node.name() != _CHANGES_ITS_OWN:
            return False
        now = (current_graph_task(), node._sequence_nr())
        begins, self._begun = self._begun != now, now
        return not (begins and func is torch.ops.aten.mul.Tensor)

    def _is_of_a_formula(self) -> bool:
        """Whether a formula adds up its two gradients, out of place, before the engine adds the sum to others."""
        node = current_node()
        if node is None or node.name() not in _TWO_GRADIENTS or node._sequence_nr() == self._added_up:
            return False
        self._added_up = node._sequence_nr()
        return True


def _writes_into_zeros(func: Any, args: Any) -> bool:
    """Whether a formula of torch's own runs it, rather than a function that somebody wrote in Python."""
    if func is torch.ops.aten.index_put.default and not (len(args) > 3 and args[3]):
        return False  # a gradient of which a part is taken out
    node = current_node()
    if node is None or isinstance(node, torch.autograd.function.BackwardCFunction):
        return False
    return node.name() not in _COUNT_EQUALS


def _engine_is_at_work() -> bool:
    """Whether this is a backward pass that nobody will differentiate."""
    return in_backward_pass() and not torch.is_grad_enabled()


def _dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill its memory, each once, in whatever order."""
    expected = 1
    for stride, size in sorted(
        (stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1
    ):
        if stride != expected:
            return False
        expected *= size
    return True


def _counts(tensor: torch.Tensor) -> tuple[int, int]:
    """How many hold a tensor, and how many its storage."""
    held: Any = tensor
    ask: Any = torch._C._storage_Use_Count
    return held._use_count(), ask(held.untyped_storage()._cdata)


class _Watch(TorchDispatchMode):
    """Notes the counts of the first gradient where two meet."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: tuple[int, int] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _ADD and in_backward_pass():
            self.seen = _counts(args[0])
        return func(*args, **(kwargs or {}))


@lru_cache(maxsize=1)
def _counts_of_an_unshared_gradient() -> tuple[int, int] | None:
    """The counts of a gradient that nothing else holds; None where this torch does not tell."""
    if not hasattr(torch._C, "_storage_Use_Count") or not hasattr(torch.Tensor, "_use_count"):
        return None
    with torch.utils._python_dispatch._disable_current_modes(), torch.enable_grad():
        start = torch.ones(2, requires_grad=True)
        middle = start * 2
        end: Any = (middle + middle.sin()).sum()
        watch = _Watch()
        with watch:
            end.backward()
    return watch.seen
