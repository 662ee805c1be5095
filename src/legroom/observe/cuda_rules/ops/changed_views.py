"""Gradients of views that were changed in place: copied on CUDA, viewed back in a trace.

An instance norm's result is a view of a batch norm's; an activation after it that works in place changes the view, and with it the tensor that it
is one of. Torch then leads the view's gradient back by strides, through zeros as large as that tensor (`AsStridedBackward`), and lets the
gradient go; for tensors without data it repeats the view backwards instead. What is taken is the same in the end, but lies elsewhere.
"""

from legroom.observe.cuda_rules.plan import Call, Move, Plan, Rule
from legroom.observe.dispatch.backward_engine import current_node


def _view(call: Call) -> Plan | None:
    return Plan([Move(0)]) if call.in_backward and _leads_to_a_changed_tensor() else None


def _leads_to_a_changed_tensor() -> bool:
    """Whether the engine's next node writes a changed part's gradient into that of the whole."""
    node = current_node()
    after = node.next_functions[0][0] if node is not None and node.next_functions else None
    return after is not None and str(after.name()).endswith("CopySlices")


RULES: dict[str, Rule] = {"aten::view": _view, "aten::_unsafe_view": _view}
