"""All that training steps change, kept on the host and put back bit for bit.

`Preserved(step, batch)` looks where a step can reach by name: its closure, the globals it uses, the object it is bound to,
arguments of partials, and onwards through containers and plain objects. Modules, optimizers, schedulers, scalers,
tensors, random generators, counters and lists found there are put back by `restore()`: in place, so that every reference a
program holds stays good. What is kept lies in host memory: the device has none to spare when sizes are tried.

What a step changes elsewhere (files it writes, what it sends) is beyond this.
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

MOST_ITEMS = 1000
"""Of a list or dict: longer ones are data, and are kept as they are without looking inside."""

Undo = Callable[[], None]


class Preserved:
    """What is reachable from `roots`, as it was. `restore()` may be called any number of times.

    `data`: what batches come from. Its counters and random generators are kept, its tensors are taken to be read only.
    """

    def __init__(self, *roots: Any, data: Any = None) -> None:
        self._undo: list[Undo] = []
        self._seen: set[int] = set()
        self._keep_ids_valid: list[Any] = []
        self._waiting: deque[Any] = deque(roots)
        self._keeps_tensors = True
        self._look_through()
        self._waiting.append(data)
        self._keeps_tensors = False
        self._look_through()
        self._undo.append(_random_state())

    def restore(self) -> None:
        with torch.no_grad():
            for undo in self._undo:
                undo()

    def _look_through(self) -> None:
        while self._waiting:
            self._look(self._waiting.popleft())

    def _look(self, value: Any) -> None:
        if isinstance(value, _PLAIN) or id(value) in self._seen:
            return
        self._seen.add(id(value))
        self._keep_ids_valid.append(value)
        if isinstance(value, torch.Tensor):
            if self._keeps_tensors:
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
            self._waiting.extend((value.__self__, value.__func__))
        elif isinstance(value, partial):
            self._waiting.extend((value.func, value.args, value.keywords))
        elif isinstance(value, list):
            self._undo.append(_list(value))
            self._waiting.extend(value[:MOST_ITEMS])
        elif isinstance(value, dict):
            self._undo.append(_dict(value))
            if len(value) <= MOST_ITEMS:
                self._waiting.extend(value.values())
        elif isinstance(value, tuple | set | frozenset | deque | Mapping):
            items = value.values() if isinstance(value, Mapping) else value
            self._waiting.extend(list(items)[:MOST_ITEMS])
        elif isinstance(value, DataLoader):
            self._waiting.extend((value.generator, value.sampler, value.batch_sampler))
        elif hasattr(value, "__dict__") and _is_of_training(value):
            self._waiting.append(vars(value))

    def _module(self, module: nn.Module) -> None:
        for part in module.modules():  # the mode, and counters of one's own
            plain = {key: value for key, value in vars(part).items() if isinstance(value, _PLAIN)}
            self._undo.append(_attributes(part, plain))
        self._waiting.extend((*module.parameters(), *module.buffers()))

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
        self._waiting.extend((*parameters, *state.values()))
        rest = {key: value for key, value in vars(optimizer).items() if key not in ("state", "param_groups")}
        self._undo.append(_attributes(optimizer, rest))

    def _function(self, function: FunctionType) -> None:
        for cell in function.__closure__ or ():
            try:
                contents = cell.cell_contents
            except ValueError:  # not filled yet
                continue
            if isinstance(contents, _PLAIN):
                self._undo.append(partial(setattr, cell, "cell_contents", contents))
            self._waiting.append(contents)
        namespace = function.__globals__
        for name in _names(function):
            if name in namespace:
                if isinstance(namespace[name], _PLAIN):
                    self._undo.append(partial(namespace.__setitem__, name, namespace[name]))
                self._waiting.append(namespace[name])
        self._waiting.extend((function.__defaults__ or (), function.__kwdefaults__ or {}))


_PLAIN = (
    str, bytes, int, float, bool, complex, type(None), torch.dtype, torch.device, torch.Size, type, ModuleType,
    BuiltinFunctionType,
)  # fmt: skip


def _is_of_training(value: Any) -> bool:
    """Whether an object is a scheduler, a scaler or a program's own; loggers, progress bars and files are left alone."""
    if hasattr(value, "state_dict") or type(value).__module__.partition(".")[0] == "legroom":
        return True
    home = sys.modules.get(type(value).__module__)
    file = getattr(home, "__file__", None) or ("" if getattr(home, "__name__", "") == "__main__" else None)
    return file is not None and "site-packages" not in file and not _is_standard(type(value).__module__)


def _is_standard(module: str) -> bool:
    return module != "__main__" and module.partition(".")[0] in sys.stdlib_module_names


def _names(function: FunctionType) -> Iterator[str]:
    """Global names that a function uses, those of functions within it included."""
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        yield from code.co_names
        codes.extend(constant for constant in code.co_consts if isinstance(constant, type(code)))


def _tensor(tensor: torch.Tensor) -> Undo:
    kept = tensor.detach().to("cpu", copy=True)
    # The gradient itself is not held: a step that clears gradients must get their memory back.
    gradient = (
        tensor.grad.detach().to("cpu", copy=True) if tensor.is_leaf and tensor.grad is not None else None
    )

    def restore() -> None:
        tensor.detach().copy_(kept)
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
    kept = list(values)

    def restore() -> None:
        values[:] = kept

    return restore


def _dict(values: dict[Any, Any]) -> Undo:
    kept = dict(values)

    def restore() -> None:
        if len(values) == len(kept) and all(key in values and values[key] is kept[key] for key in kept):
            return
        values.clear()
        values.update(kept)

    return restore


def _attributes(owner: Any, kept: dict[str, Any]) -> Undo:
    def restore() -> None:
        vars(owner).update(kept)

    return restore


def _random_state() -> Undo:
    """Torch's generators on the host and on every GPU, Python's own, and NumPy's where it is loaded."""
    on_host = torch.get_rng_state()
    on_devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    in_python = random.getstate()
    numpy = sys.modules.get("numpy")
    in_numpy = numpy.random.get_state() if numpy is not None else None

    def restore() -> None:
        torch.set_rng_state(on_host)
        if on_devices:
            torch.cuda.set_rng_state_all(on_devices)
        random.setstate(in_python)
        if numpy is not None:
            numpy.random.set_state(in_numpy)

    return restore
