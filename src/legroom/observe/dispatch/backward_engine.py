"""The state of torch's autograd engine on this thread.

The functions that return this state are private to torch, and some versions of torch lack them. Each docstring says
what Legroom does without the function.
"""

from collections.abc import Callable
from typing import Any

import torch

ACCUMULATE_GRAD = 2**63
"""`AccumulateGrad` nodes have at least this sequence number. An `AccumulateGrad` node does not belong to a single
iteration, because it stays alive as long as its parameter.
"""


def _no_node() -> None:
    return None


def _no_graph_task() -> int:
    return -1


current_node: Callable[[], Any] = getattr(torch._C, "_current_autograd_node", _no_node)
"""Returns the node that the engine runs, or None outside a backward pass. Without this function, backward operations
are attributed to the line that called `backward()`.
"""
next_sequence_nr: Callable[[], int] | None = getattr(torch._C._autograd, "_get_sequence_nr", None)
"""Returns the sequence number of the next node. Without this function, backward operations are attributed to the line
that called `backward()`, and the age of graphs is unknown.
"""
current_graph_task: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", _no_graph_task)
"""Returns the id of the running backward pass, or -1. Without this function, no backward pass is detected."""


def in_backward_pass() -> bool:
    """Return whether the engine is running on this thread.

    Without torch's private graph task ID, the result is always False. A backward pass is then treated as part of the
    forward pass, its tensors as host memory, and its gradients as accumulated out of place.
    """
    return current_graph_task() != -1
