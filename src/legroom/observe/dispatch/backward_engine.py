"""The state of torch's autograd engine on this thread.

The functions that return this state are private to torch. Each of them is looked up once in this module, and its
docstring states what is lost in versions of torch without it.
"""

from collections.abc import Callable
from typing import Any

import torch

ACCUMULATE_GRAD = 2**63
"""Nodes that accumulate gradients have at least this sequence number. They stay alive as long as their parameter."""


def _no_node() -> None:
    return None


def _no_graph_task() -> int:
    return -1


current_node: Callable[[], Any] = getattr(torch._C, "_current_autograd_node", _no_node)
"""The node that the engine runs, or None outside a backward pass. Without it, backward operations are attributed to the line that
called `backward()`."""
next_sequence_nr: Callable[[], int] | None = getattr(torch._C._autograd, "_get_sequence_nr", None)
"""The sequence number of the next node. Without it, backward operations are attributed to the line that called `backward()`, and
the age of graphs is unknown."""
current_graph_task: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", _no_graph_task)
"""The id of the running backward pass, or -1. Without it, no backward pass is detected."""


def in_backward_pass() -> bool:
    """Return whether the engine is running on this thread.

    Without torch's private graph task id, the result is always False. In that case, every operation is treated as part
    of the forward pass, tensors that a backward pass creates are treated as host memory, and gradient accumulation is
    assumed to be out of place.
    """
    return current_graph_task() != -1
