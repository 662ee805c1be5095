"""Records the addresses of parameters, gradients, optimizer state and inputs.

The allocator's history contains addresses, not tensors. When a module is called or an optimizer steps, this module
records the addresses of tensors whose category is certain, with the current tick (see `markers`). The block that
contains the address at this tick has the category of the tensor for its whole lifetime. The records contain addresses
and weak references to modules and optimizers, but no references to tensors.
"""

import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from legroom.memory.event_base import Category
from legroom.observe.dispatch.module_names import displayed_path
from legroom.observe.training_threads import other_threads_train


class OwnedAddresses(NamedTuple):
    """The addresses of the tensors of one category at one tick (see `markers`)."""

    tick: int
    category: Category
    addresses: list[int]
    """The address of each tensor, or 0 for a tensor in host memory."""
    details: list[tuple[int, str]]
    """The size of each tensor in bytes, and the path of its module or ""."""


class AddressOwners:
    KEEP_TRANSIENT = 4096
    """The maximum number of records of gradients and inputs. This maximum is enough for the steps in the history."""
    KEEP_PERSISTENT = 64

    def __init__(self) -> None:
        self.transient: deque[OwnedAddresses] = deque(maxlen=self.KEEP_TRANSIENT)
        self.persistent: deque[OwnedAddresses] = deque(maxlen=self.KEEP_PERSISTENT)
        self._roots: dict[int, weakref.ref[nn.Module]] = {}
        self._optimizers: dict[int, _Optimizer] = {}
        self._modules: dict[int, str] = {}

    # --- callbacks

    def root_called(self, root: nn.Module, arguments: tuple[Any, ...], tick: int) -> None:
        known = self._roots.get(id(root))
        if known is None or known() is not root:
            self._roots[id(root)] = weakref.ref(root)
            self._add_root(root, tick)
        inputs = [tensor for tensor in tensors_in(arguments) if tensor.is_cuda and tensor.grad_fn is None]
        if inputs:
            self.transient.append(_owned_addresses(tick, Category.INPUT, ((tensor, "") for tensor in inputs)))

    def before_optimizer_step(self, optimizer: torch.optim.Optimizer, tick: int) -> None:
        # All gradients exist before an optimizer step.
        known = self._optimizers.get(id(optimizer))
        if known is None or known.reference() is not optimizer:
            known = self._optimizers[id(optimizer)] = _Optimizer(optimizer)
            self.persistent.append(
                _owned_addresses(
                    tick, Category.PARAMETER, ((p, self._module_of(p)) for p in _parameters(optimizer))
                )
            )
        try:
            addresses = [
                0 if (gradient := parameter.grad) is None else gradient.data_ptr()
                for parameter in _parameters(optimizer)
            ]
        except RuntimeError:  # a sparse tensor, or a wrapper without memory
            return
        if addresses == known.addresses:
            addresses = known.addresses
        elif len(addresses) != len(known.details):
            known.details = [
                (parameter.nbytes, self._module_of(parameter)) for parameter in _parameters(optimizer)
            ]
        known.addresses = addresses
        self.transient.append(OwnedAddresses(tick, Category.GRADIENT, addresses, known.details))

    def after_optimizer_step(self, optimizer: torch.optim.Optimizer, tick: int) -> None:
        # The state is allocated in the first step, or in the second step if the first was skipped.
        known = self._optimizers.get(id(optimizer))
        if known is not None and known.steps < 2:
            known.steps += 1
            self.persistent.append(self._state_of(optimizer, tick))

    def everything(self, tick: int) -> list[OwnedAddresses]:
        """Return the addresses of all tensors whose category is known now. The most certain categories come first."""
        found = []
        for reference in list(self._roots.values()):
            root = reference()
            if root is not None:
                found.extend(self._owners_in(root, tick))
        for known in list(self._optimizers.values()):
            optimizer = known.reference()
            if optimizer is not None:
                parameters = list(_parameters(optimizer))
                found.append(
                    _owned_addresses(tick, Category.PARAMETER, ((p, self._module_of(p)) for p in parameters))
                )
                found.append(_gradients(tick, ((p, self._module_of(p)) for p in parameters)))
                found.append(self._state_of(optimizer, tick))
                del parameters
        return found

    def has_gradients(self) -> bool:
        if other_threads_train():
            return True
        for reference in list(self._roots.values()):
            root = reference()
            if root is not None and any(parameter.grad is not None for parameter in root.parameters()):
                return True
        return False

    def module_of(self, parameter: Any) -> str:
        return self._module_of(parameter)

    # --- collecting addresses

    def _add_root(self, root: nn.Module, tick: int) -> None:
        if len(self._roots) > 256:
            self._roots = {key: known for key, known in self._roots.items() if known() is not None}
        self.persistent.extend(self._owners_in(root, tick))

    def _owners_in(self, root: nn.Module, tick: int) -> list[OwnedAddresses]:
        own = type(root).__name__
        # Use the same paths as for running modules, so that a gradient is assigned to the line that called its module.
        paths = {name: displayed_path(name, module) or own for name, module in root.named_modules()}

        def module_of(name: str) -> str:
            return paths.get(name.rpartition(".")[0], own)

        named = [(parameter, module_of(name)) for name, parameter in root.named_parameters()]
        for parameter, module in named:
            self._modules[id(parameter)] = module
        buffers = [(buffer, module_of(name)) for name, buffer in root.named_buffers()]
        return [
            _owned_addresses(tick, Category.PARAMETER, named),
            _owned_addresses(tick, Category.BUFFER, buffers),
            _gradients(tick, named),
        ]

    def _module_of(self, parameter: Any) -> str:
        return self._modules.get(id(parameter), "")

    def _state_of(self, optimizer: torch.optim.Optimizer, tick: int) -> OwnedAddresses:
        return _owned_addresses(
            tick,
            Category.OPTIMIZER_STATE,
            (
                (tensor, self._module_of(parameter))
                for parameter, state in list(optimizer.state.items())
                for tensor in tensors_in((state,))
            ),
        )


class _Optimizer:
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.reference = weakref.ref(optimizer)
        self.steps = 0
        self.addresses: list[int] = []
        self.details: list[tuple[int, str]] = []


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[Any]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _gradients(tick: int, named: Iterable[tuple[Any, str]]) -> OwnedAddresses:
    if other_threads_train():  # reading `.grad` during a backward pass of another thread is not safe
        return OwnedAddresses(tick, Category.GRADIENT, [], [])
    present = ((p.grad, module) for p, module in named if p.is_leaf and p.grad is not None)
    return _owned_addresses(tick, Category.GRADIENT, present)


def _owned_addresses(tick: int, category: Category, tensors: Iterable[tuple[Any, str]]) -> OwnedAddresses:
    addresses: list[int] = []
    details: list[tuple[int, str]] = []
    for tensor, module in tensors:
        tensor = getattr(tensor, "_local_tensor", tensor)  # the local shard of a DTensor
        try:
            if tensor.is_cuda:
                addresses.append(tensor.data_ptr())
                details.append((tensor.nbytes, module))
        except (RuntimeError, NotImplementedError):  # a tensor without memory
            continue
    return OwnedAddresses(tick, category, addresses, details)


def tensors_in(value: Iterable[Any], depth: int = 4) -> Iterator[torch.Tensor]:
    for item in value:
        if isinstance(item, torch.Tensor):
            yield item
        elif depth and isinstance(item, tuple | list):
            yield from tensors_in(item, depth - 1)
        elif depth and isinstance(item, Mapping):
            yield from tensors_in(item.values(), depth - 1)
