"""A snapshot of the state that training steps change, which can be restored bit for bit. The snapshot is in host
memory, because the trials need the device memory.

`StateSnapshot(step, batch)` includes the objects that a step references by name: its closure, its globals, the object
it is bound to, and the arguments of partials. The snapshot also includes the containers and plain objects that these
objects reference. `restore()` restores modules, optimizers, schedulers, scalers, tensors, random generators, counters
and lists in place, so references in the program stay valid.

External effects of a step (files, network) are not restored.
"""

import copy
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

MAX_ITEMS = 1000
"""The maximum number of items of a list or dict in the snapshot. Larger containers are treated as data and are not
included.
"""

Undo = Callable[[], None]


class StateSnapshot:
    """The state of all objects reachable from `roots`. `restore()` may be called any number of times.

    `data` is the source of batches. The counters and random generators of `data` are saved, and the tensors of `data`
    are assumed to be read-only.
    """

    def __init__(self, *roots: Any, data: Any = None) -> None:
        self._undo: list[Undo] = []
        self._seen: set[int] = set()
        self._visited: list[Any] = []
        """The visited objects, which are kept alive so that their ids stay valid."""
        self._queue: deque[Any] = deque(roots)
        self._saves_tensors = True
        self._visit_all()
        self._queue.append(data)
        self._saves_tensors = False
        self._visit_all()
        self._undo.append(_random_state())

    def restore(self) -> None:
        with torch.no_grad():
            for undo in self._undo:
                undo()

    def _visit_all(self) -> None:
        while self._queue:
            self._visit(self._queue.popleft())

    def _visit(self, value: Any) -> None:
        if isinstance(value, _PLAIN) or id(value) in self._seen:
            return
        self._seen.add(id(value))
        self._visited.append(value)
        if isinstance(value, torch.Tensor):
            if self._saves_tensors:
                self._undo.append(_tensor(value))
        elif isinstance(value, nn.Module):
            self._module(value)
        elif isinstance(value, torch.optim.Optimizer):
            self._optimizer(value)
        elif isinstance(value, torch.Generator):
            self._undo.append(_generator(value))
        elif isinstance(value, FunctionType):
            self._function(value)
        elif isinstance(value, MethodType):
            self._queue.extend((value.__self__, value.__func__))
        elif isinstance(value, partial):
            self._queue.extend((value.func, value.args, value.keywords))
        elif isinstance(value, list):
            self._undo.append(_list(value))
            self._queue.extend(value[:MAX_ITEMS])
        elif isinstance(value, dict):
            self._undo.append(_dict(value))
            if len(value) <= MAX_ITEMS:
                self._queue.extend(value.values())
        elif isinstance(value, tuple | set | frozenset | deque | Mapping):
            items = value.values() if isinstance(value, Mapping) else value
            self._queue.extend(list(items)[:MAX_ITEMS])
        elif isinstance(value, DataLoader):
            self._queue.extend((value.generator, value.sampler, value.batch_sampler))
        elif hasattr(value, "__dict__") and _has_training_state(value):
            self._queue.append(vars(value))

    def _module(self, module: nn.Module) -> None:
        for child in module.modules():  # the training mode, and counters
            plain = {key: value for key, value in vars(child).items() if isinstance(value, _PLAIN)}
            self._undo.append(_attributes(child, plain))
        self._queue.extend((*module.parameters(), *module.buffers()))

    def _optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        groups = [
            {key: copy.deepcopy(value) for key, value in group.items() if key != "params"}
            for group in optimizer.param_groups
        ]
        state = dict(optimizer.state)

        def restore() -> None:
            for group, values in zip(optimizer.param_groups, groups, strict=False):
                for key in [key for key in group if key != "params" and key not in values]:
                    del group[key]
                group.update(copy.deepcopy(values))
            optimizer.state.clear()
            optimizer.state.update(state)

        self._undo.append(restore)
        self._queue.extend((*parameters, *state.values()))
        rest = {key: value for key, value in vars(optimizer).items() if key not in ("state", "param_groups")}
        self._undo.append(_attributes(optimizer, rest))

    def _function(self, function: FunctionType) -> None:
        for cell in function.__closure__ or ():
            try:
                contents = cell.cell_contents
            except ValueError:  # an empty cell
                continue
            if isinstance(contents, _PLAIN):
                self._undo.append(partial(setattr, cell, "cell_contents", contents))
            self._queue.append(contents)
        namespace = function.__globals__
        for name in _names(function):
            if name in namespace:
                if isinstance(namespace[name], _PLAIN):
                    self._undo.append(partial(namespace.__setitem__, name, namespace[name]))
                self._queue.append(namespace[name])
        self._queue.extend((function.__defaults__ or (), function.__kwdefaults__ or {}))


_PLAIN = (
    str, bytes, int, float, bool, complex, type(None), torch.dtype, torch.device, torch.Size, type, ModuleType,
    BuiltinFunctionType,
)  # fmt: skip


def _has_training_state(value: Any) -> bool:
    """Return True if an object is a scheduler, a scaler, or an instance of a class that the user's program defines.
    Loggers, progress bars and files have no training state.
    """
    if hasattr(value, "state_dict") or type(value).__module__.partition(".")[0] == "legroom":
        return True
    module = sys.modules.get(type(value).__module__)
    file = getattr(module, "__file__", None) or (
        "" if getattr(module, "__name__", "") == "__main__" else None
    )
    return file is not None and "site-packages" not in file and not _is_standard(type(value).__module__)


def _is_standard(module: str) -> bool:
    return module != "__main__" and module.partition(".")[0] in sys.stdlib_module_names


def _names(function: FunctionType) -> Iterator[str]:
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        yield from code.co_names
        codes.extend(constant for constant in code.co_consts if isinstance(constant, type(code)))


def _tensor(tensor: torch.Tensor) -> Undo:
    saved = tensor.detach().to("cpu", copy=True)
    # Only a copy of the gradient is kept, because a step that clears gradients must free their memory.
    gradient = (
        tensor.grad.detach().to("cpu", copy=True) if tensor.is_leaf and tensor.grad is not None else None
    )

    def restore() -> None:
        tensor.detach().copy_(saved)
        if gradient is not None:
            if tensor.grad is not None and tensor.grad.shape == gradient.shape:
                tensor.grad.detach().copy_(gradient)
            else:
                tensor.grad = gradient.to(tensor.device)
        elif tensor.is_leaf and tensor.grad is not None:
            tensor.grad = None

    return restore


def _generator(generator: torch.Generator) -> Undo:
    state = generator.get_state()

    def restore() -> None:
        generator.set_state(state)

    return restore


def _list(values: list[Any]) -> Undo:
    saved = list(values)

    def restore() -> None:
        values[:] = saved

    return restore


def _dict(values: dict[Any, Any]) -> Undo:
    saved = dict(values)

    def restore() -> None:
        if len(values) == len(saved) and all(key in values and values[key] is saved[key] for key in saved):
            return
        values.clear()
        values.update(saved)

    return restore


def _attributes(owner: Any, saved: dict[str, Any]) -> Undo:
    def restore() -> None:
        vars(owner).update(saved)

    return restore


def _random_state() -> Undo:
    cpu_state = torch.get_rng_state()
    device_states = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    python_state = random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy is not None else None

    def restore() -> None:
        torch.set_rng_state(cpu_state)
        if device_states:
            torch.cuda.set_rng_state_all(device_states)
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)

    return restore
