"""What the storages of a run are: told by identity, as soon as that can be known.

Parameters and buffers belong to modules, gradients are what the engine accumulates, optimizer state is what an optimizer
keeps, activations are what the autograd graph saved, inputs are what a loader gave. A storage that nothing claims
stays what it was taken for at its birth.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from legroom.memory.events import Category, Event, Phase, Tag
from legroom.observe.dispatch.backward_engine import current_node
from legroom.observe.dispatch.storages import Live, storage_of, tensors_in
from legroom.observe.holders import autograd_graph

GUESSES = (Category.TEMPORARY, Category.INPUT)
"""What a storage may have been taken for until something claims it."""
_PASSING = (Category.ACTIVATION, Category.RESULT, Category.TEMPORARY)
"""What a storage of the forward pass may be one after the other."""


class Roles:
    """Tags live storages, and remembers the roles of host tensors for when they are copied to a device."""

    def __init__(self, live: dict[int, Live], emit: Callable[[Event], None], *, everywhere: bool) -> None:
        self.live = live
        self.everywhere = everywhere
        self._emit = emit
        self._host_roles: dict[int, tuple[weakref.ref[Any], Category]] = {}

    def tag(self, storage: Live, category: Category) -> None:
        if storage.category is not category:
            storage.category = category
            if storage.block is not None:
                self._emit(Tag(storage.id, category))

    def tag_tensor(self, tensor: Any, category: Category, *, over: Sequence[Category] | None = None) -> None:
        """It became known what `tensor` is. With `over`, only if it was one of these so far."""
        storage = storage_of(tensor)
        known = self.live.get(storage._cdata) if storage is not None else None
        if known is not None and (over is None or known.category in over):
            self.tag(known, category)

    def maybe_gradient(self, out: torch.Tensor) -> None:
        """The engine detaches what becomes `.grad`, from within a node that accumulates."""
        node = current_node()
        if node is not None and "AccumulateGrad" in node.name():
            self.tag_tensor(out, Category.GRADIENT)

    def find_activations(self, roots: Iterable[Any]) -> None:
        """Tag what the graph below `roots` saved for the backward pass.

        Where pack hooks hide what is saved (checkpointing), what the forward pass made and is still alive is
        taken for saved: its graph holds it.
        """
        hidden = False
        for node in autograd_graph.nodes(roots):
            for tensor in autograd_graph.saved_by(node):
                self.tag_tensor(tensor, Category.ACTIVATION, over=(Category.TEMPORARY,))
            hidden = hidden or autograd_graph.has_pack_hooks(node)
        if hidden:
            for storage in list(self.live.values()):
                if storage.phase is Phase.FORWARD and storage.category is Category.TEMPORARY:
                    self.tag(storage, Category.ACTIVATION)

    def discover(
        self,
        tensors: Iterable[torch.Tensor],
        optimizers: Iterable[torch.optim.Optimizer],
        held: Mapping[int, Category],
    ) -> None:
        """Look at everything whose role can be told by identity now: before a report of this very moment.

        `tensors`: such as the locals of the frames at work, whose graphs hold the activations so far. `held`: what storages are by who holds
        them.
        """
        self.find_activations([tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None])
        for key, category in held.items():
            known = self.live.get(key)
            if known is None or known.category not in _PASSING:
                continue
            if known.phase is Phase.FORWARD or category is Category.ACTIVATION:
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
                self.note_role(buffer, Category.BUFFER)

    def batch_given(self, batch: Any) -> None:
        with torch._C.DisableTorchFunction():
            for tensor in tensors_in((batch,)):
                self.note_role(tensor, Category.INPUT)

    def note_role(self, tensor: torch.Tensor, category: Category) -> None:
        """`tensor` has this role; if it lives on the host, its copies to a device will have it."""
        storage = storage_of(tensor)
        if storage is None:
            return
        known = self.live.get(storage._cdata)
        if known is not None:
            self.tag(known, category)
        elif not self.everywhere:
            if len(self._host_roles) > 4096:
                self._host_roles = {
                    key: role for key, role in self._host_roles.items() if role[0]() is not None
                }
            self._host_roles[storage._cdata] = (weakref.ref(storage), category)

    def role_of_copy(self, source: torch.Tensor) -> Category | None:
        """What a copy of `source` to a device is, as far as the source tells."""
        if isinstance(source, nn.Parameter):
            return Category.PARAMETER
        storage = storage_of(source)
        if storage is None:
            return None
        known = self.live.get(storage._cdata)
        if known is not None:
            return known.category
        role = self._host_roles.get(storage._cdata)
        if role is not None and role[0]() is storage:
            return role[1]
        return Category.INPUT if source.grad_fn is None else None

    def optimizer_at_work(self, optimizer: torch.optim.Optimizer, done: bool) -> None:
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
