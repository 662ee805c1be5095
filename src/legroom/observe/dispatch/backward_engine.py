"""What torch's autograd engine tells of itself on this thread.

Its calls are private: each stands here once, with what is lost where a torch does not have it.
"""

from collections.abc import Callable
from typing import Any

import torch

ACCUMULATES = 2**63
"""Nodes that add up gradients carry at least this number; they live as long as their parameter."""


def _no_node() -> None:
    return None


def _no_pass() -> int:
    return -1


current_node: Callable[[], Any] = getattr(torch._C, "_current_autograd_node", _no_node)
"""The node that the engine runs, or None outside a backward pass. Without it, backward operations are attributed to the line that called
`backward()`."""
next_number: Callable[[], int] | None = getattr(torch._C._autograd, "_get_sequence_nr", None)
"""The number that the next node will have. Without it, backward operations are attributed in the same way, and graphs are told by the
tensors that hold them."""
current_pass: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", _no_pass)
"""The number of the pass that the engine is at, or -1. Without it the engine seems never to be at work."""


def in_backward_pass() -> bool:
    """Whether the engine is at work. Without torch's private id of a pass it never is: then everything counts as forward, what a backward
    pass makes from nothing is taken for the host's, and gradients that meet are taken to be added out of place."""
    return current_pass() != -1
