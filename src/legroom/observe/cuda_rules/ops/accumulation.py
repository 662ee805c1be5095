"""Models how the autograd engine accumulates gradients in place.

If two paths of the graph lead to the same tensor (as with every residual connection), the engine adds the second
gradient to the first gradient. If no other object references the first gradient, the engine writes the sum into its
memory (`accumulate` in torch/csrc/autograd/input_buffer.cpp). Under a dispatch mode, or if a tensor belongs to a
subclass, the engine allocates a third tensor instead. A trace would therefore use memory that the real run does not
use. The engine never adds to a gradient that is a view, such as the gradient of a linear layer with a 3D input.

Some derivative formulas also write in place: the gradients of selected values (`max`, `gather`, `x[index]`) are written
into a tensor of zeros. If a tensor belongs to a subclass, the formula writes into a new tensor instead
(`areAnyTensorSubclassLike` in FunctionsManual.cpp). `instead_of` returns the operation that would run without the mode.

If the reference counts of the first gradient are higher than those of an unshared gradient, another object references
it. `Accumulation()` runs a small backward pass to measure the reference counts of a gradient that nothing else uses.
Therefore do not create an `Accumulation` while an operation is being dispatched.
"""

from functools import lru_cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from legroom.observe.cuda_rules.plan import MemoryPlan, OpCall, OutputCopy, Rule
from legroom.observe.dispatch.backward_engine import current_graph_task, current_node, in_backward_pass
from legroom.observe.dispatch.storage_counts import count_references

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
_IN_PLACE_FORMULA = "BinaryCrossEntropyWithLogitsBackward0"
"""The autograd node whose formula creates a tensor and then changes it in place
(`binary_cross_entropy_with_logits_backward`).
"""
_COUNT_EQUALS = frozenset(("ScatterReduceBackward0", "IndexReduceBackward0"))
"""Autograd nodes whose formulas allocate a separate tensor to count equal values (`scatter_reduce_backward`)."""
_TWO_GRADIENTS = frozenset(("VarMeanBackward0", "StdMeanBackward0"))
"""Autograd nodes whose formulas add the gradients of two results (`var_mean_backward` in FunctionsManual.cpp)."""


class Accumulation:
    def __init__(self) -> None:
        self._unshared = _counts_of_an_unshared_gradient()
        self._added_up = -1
        self._begun = (-1, -1)

    def instead_of(self, func: Any, args: Any, kwargs: dict[str, Any] | None) -> Any:
        """Return the operation to run instead of `func`. The result is the in-place variant if the engine would add in
        place, or if a formula would write into its own tensor of zeros.
        """
        if func in _INTO_ZEROS:
            return _INTO_ZEROS[func] if _in_final_backward_pass() and _writes_into_zeros(func, args) else func
        if func in _IN_A_FORMULA:
            return _IN_A_FORMULA[func] if _in_final_backward_pass() and self._changes_in_place(func) else func
        if func is not _ADD or self._unshared is None or kwargs or len(args) != 2:
            return func
        first, second = args
        if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
            return func
        if first.shape != second.shape or first.dtype != second.dtype or not _dense(first):
            return func
        if not _in_final_backward_pass() or first._is_view():
            return func
        tensor, storage = _counts(first)
        if tensor > self._unshared[0] or storage > self._unshared[1] or self._adds_two_gradients():
            return func
        return _ADD_IN_PLACE

    def _changes_in_place(self, func: Any) -> bool:
        """Return whether the running formula applies `func` in place to a tensor that it created. The formula creates
        the tensor with its first multiplication, which is therefore not in place.
        """
        node = current_node()
        if node is None or node.name() != _IN_PLACE_FORMULA:
            return False
        now = (current_graph_task(), node._sequence_nr())
        begins, self._begun = self._begun != now, now
        return not (begins and func is torch.ops.aten.mul.Tensor)

    def _adds_two_gradients(self) -> bool:
        """Return whether the running formula adds its two gradients out of place. The engine adds the sum to other
        gradients later.
        """
        node = current_node()
        if node is None or node.name() not in _TWO_GRADIENTS or node._sequence_nr() == self._added_up:
            return False
        self._added_up = node._sequence_nr()
        return True


def _writes_into_zeros(func: Any, args: Any) -> bool:
    """Return whether the operation is called by a derivative formula in torch rather than by an autograd function
    written in Python.
    """
    if func is torch.ops.aten.index_put.default and not (len(args) > 3 and args[3]):
        return False  # sets some elements of a gradient to zero
    node = current_node()
    if node is None or isinstance(node, torch.autograd.function.BackwardCFunction):
        return False
    return node.name() not in _COUNT_EQUALS


def _in_final_backward_pass() -> bool:
    return in_backward_pass() and not torch.is_grad_enabled()


def _dense(tensor: torch.Tensor) -> bool:
    """Return whether the elements fill the memory without gaps and overlaps, in any order."""
    expected = 1
    for stride, size in sorted(
        (stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1
    ):
        if stride != expected:
            return False
        expected *= size
    return True


def _counts(tensor: torch.Tensor) -> tuple[int, int]:
    counted: Any = tensor
    assert count_references is not None
    return counted._use_count(), count_references(counted.untyped_storage()._cdata)


class _CountAtAddition(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: tuple[int, int] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _ADD and in_backward_pass():
            self.counts = _counts(args[0])
        return func(*args, **(kwargs or {}))


@lru_cache(maxsize=1)
def _counts_of_an_unshared_gradient() -> tuple[int, int] | None:
    """Return the reference counts of a gradient that no other object references, or None if this version of torch does
    not expose reference counts.
    """
    if count_references is None or not hasattr(torch.Tensor, "_use_count"):
        return None
    with torch.utils._python_dispatch._disable_current_modes(), torch.enable_grad():
        start = torch.ones(2, requires_grad=True)
        middle = start * 2
        end: Any = (middle + middle.sin()).sum()
        mode = _CountAtAddition()
        with mode:
            end.backward()
    return mode.counts


def _view(call: OpCall) -> MemoryPlan | None:
    """Return a plan that copies the gradient of a view that was changed in place, as on CUDA. In a trace, the engine
    would compute this gradient by replaying the view, without a copy.

    For example, an instance norm returns a view of the tensor that a batch norm computed. An in-place activation after
    the instance norm changes the view and its base. PyTorch then creates zeros with the size of the base, writes the
    gradient of the view into them by strides (`AsStridedBackward`), and frees the gradient. If the tensors have no
    data, torch instead replays the view in reverse. The gradient has the same size, but its memory is at a different
    address.
    """
    return MemoryPlan([OutputCopy(0)]) if call.in_backward and _precedes_copy_slices() else None


def _precedes_copy_slices() -> bool:
    """Return whether the next autograd node is `CopySlices`, which writes the gradient of a modified view into the
    gradient of its base.
    """
    node = current_node()
    after = node.next_functions[0][0] if node is not None and node.next_functions else None
    return after is not None and str(after.name()).endswith("CopySlices")


RULES: dict[str, Rule] = {"aten::view": _view, "aten::_unsafe_view": _view}
