"""Assigns each live storage a category as soon as its purpose is known.

Parameters and buffers belong to modules, and optimizer state belongs to an optimizer. The autograd engine accumulates
gradients, the autograd graph saves activations, and a data loader returns inputs. A storage whose purpose is unknown
keeps its category from the time of allocation.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from legroom.memory.event_base import Category, Phase
from legroom.memory.events import Event, Tag
from legroom.observe.dispatch.backward_engine import ACCUMULATE_GRAD, current_node
from legroom.observe.dispatch.storages import LiveStorage, storage_of, tensors_in
from legroom.observe.holders import autograd_graph

GUESSES = (Category.TEMPORARY, Category.INPUT)
"""Categories that a storage may have before its purpose is known."""
_TEMPORARY = (Category.TEMPORARY,)
_FORWARD_CATEGORIES = (Category.ACTIVATION, Category.RESULT, Category.TEMPORARY)
"""Categories of storages that the forward pass allocates. A storage may change from one of these categories to another.
"""


class CategoryTracker:
    """Sets the categories of live storages, and stores the categories of host tensors. A device copy of a host tensor
    gets the category of the host tensor.
    """

    def __init__(
        self, live: dict[int, LiveStorage], emit: Callable[[Event], None], *, host_only: bool
    ) -> None:
        self.live = live
        self._host_only = host_only
        self._emit = emit
        self._host_categories: dict[int, tuple[weakref.ref[Any], Category]] = {}

    def tag(self, storage: LiveStorage, category: Category) -> None:
        if storage.category is not category:
            storage.category = category
            if storage.block is not None:
                self._emit(Tag(storage.id, category))

    def tag_tensor(self, tensor: Any, category: Category, *, over: Sequence[Category] | None = None) -> None:
        """Set the category of a tensor's storage. If `over` is given, set the category only if the previous category is
        in `over`.
        """
        storage = storage_of(tensor)
        known = self.live.get(storage._cdata) if storage is not None else None
        if known is not None and known.category is not category and (over is None or known.category in over):
            self.tag(known, category)

    def maybe_gradient(self, out: torch.Tensor) -> None:
        """Set the category `GRADIENT` for the result of `detach`, if an AccumulateGrad node is running, because the
        result becomes `.grad`.
        """
        node = current_node()
        if node is not None and node._sequence_nr() >= ACCUMULATE_GRAD:
            self.tag_tensor(out, Category.GRADIENT)

    def find_activations(self, roots: Iterable[Any]) -> None:
        """Set the category of the tensors that the graph below `roots` saved for the backward pass.

        If pack hooks hide the saved tensors, as in checkpointing, all live storages of the forward pass are treated as
        saved, because the graph keeps them alive.
        """
        hidden = False
        for node in autograd_graph.nodes(roots):
            saved, packed = autograd_graph.saved_and_packed(node)
            for tensor in saved:
                self.tag_tensor(tensor, Category.ACTIVATION, over=_TEMPORARY)
            hidden = hidden or packed
        if hidden:
            for storage in list(self.live.values()):
                if storage.phase is Phase.FORWARD and storage.category is Category.TEMPORARY:
                    self.tag(storage, Category.ACTIVATION)

    def update(
        self,
        tensors: Iterable[torch.Tensor],
        optimizers: Iterable[torch.optim.Optimizer],
        by_holder: Mapping[int, Category],
    ) -> None:
        """Update every category that can be determined now, before a report on the current state.

        The autograd graphs of `tensors`, for example local variables on the call stack, are searched for activations.
        `by_holder` maps storage keys to categories derived from the objects that retain the storages.
        """
        self.find_activations([tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None])
        for key, category in by_holder.items():
            known = self.live.get(key)
            if known is None or known.category not in _FORWARD_CATEGORIES:
                continue
            if known.phase in (Phase.FORWARD, Phase.OTHER) or category is Category.ACTIVATION:
                self.tag(known, category)
        for optimizer in optimizers:
            self.tag_optimizer(optimizer)

    def module_entered(self, module: nn.Module, args: tuple[Any, ...], is_root: bool) -> None:
        with torch._C.DisableTorchFunction():
            for parameter in module._parameters.values():
                if parameter is not None:
                    self.tag_tensor(parameter, Category.PARAMETER)
            for buffer in module._buffers.values():
                if buffer is not None:
                    self.tag_tensor(buffer, Category.BUFFER, over=GUESSES)
            if is_root:
                for tensor in tensors_in(args):
                    if tensor.grad_fn is None:
                        self.tag_tensor(tensor, Category.INPUT, over=(Category.TEMPORARY,))

    def parameter_registered(self, module: nn.Module, name: str, parameter: Any) -> None:
        if parameter is not None:
            with torch._C.DisableTorchFunction():
                self.tag_tensor(parameter, Category.PARAMETER)

    def buffer_registered(self, module: nn.Module, name: str, buffer: Any) -> None:
        if buffer is not None:
            with torch._C.DisableTorchFunction():
                self.note_category(buffer, Category.BUFFER)

    def batch_loaded(self, batch: Any) -> None:
        with torch._C.DisableTorchFunction():
            for tensor in tensors_in((batch,)):
                self.note_category(tensor, Category.INPUT)

    def note_category(self, tensor: torch.Tensor, category: Category) -> None:
        """Set the category of `tensor`. If the tensor is on the host, its copies on a device get this category."""
        storage = storage_of(tensor)
        if storage is None:
            return
        known = self.live.get(storage._cdata)
        if known is not None:
            self.tag(known, category)
        elif not self._host_only:
            if len(self._host_categories) > 4096:
                self._host_categories = {
                    key: entry for key, entry in list(self._host_categories.items()) if entry[0]() is not None
                }
            self._host_categories[storage._cdata] = (weakref.ref(storage), category)

    def category_of_copy(self, source: torch.Tensor) -> Category | None:
        if isinstance(source, nn.Parameter):
            return Category.PARAMETER
        storage = storage_of(source)
        if storage is None:
            return None
        known = self.live.get(storage._cdata)
        if known is not None:
            return known.category
        entry = self._host_categories.get(storage._cdata)
        if entry is not None and entry[0]() is storage:
            return entry[1]
        return Category.INPUT if source.grad_fn is None else None

    def optimizer_called(self, optimizer: torch.optim.Optimizer, done: bool) -> None:
        with torch._C.DisableTorchFunction():
            self.tag_optimizer(optimizer)

    def tag_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self.tag_tensor(parameter, Category.PARAMETER)
                if parameter.grad is not None:
                    self.tag_tensor(parameter.grad, Category.GRADIENT)
        for state in optimizer.state.values():
            for tensor in tensors_in((state,)):
                self.tag_tensor(tensor, Category.OPTIMIZER_STATE, over=GUESSES)
