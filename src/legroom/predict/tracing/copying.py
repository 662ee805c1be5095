"""A step function and all it works on, copied onto a traced device: the originals are neither changed nor doubled.

Tensors become tensors without data (small ones that are no parameters keep their values), so the copy costs nothing; modules, optimizers and containers are deep-copied
around them, and everything that shared a tensor before still does. A device named `cpu` in the copied variables
becomes `cuda`: people without a GPU write their step for what they have.
"""

import copy
from collections.abc import Callable, Mapping
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from legroom.observe.fake.known_values import MAX_TRACKED_BYTES


class OntoDevice:
    """Copies onto `cuda`, one memo for everything, so that what is shared stays shared."""

    def __init__(self) -> None:
        self._memo: dict[int, Any] = {}
        self._keep: list[Any] = []
        self._globals: dict[int, dict[str, Any]] = {}

    def copied(self, value: Any) -> Any:
        """A deep copy of `value` with its tensors on the device."""
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, MethodType) and not isinstance(value.__self__, type | ModuleType):
            return MethodType(value.__func__, self.copied(value.__self__))
        if isinstance(value, torch.device):
            return torch.device("cuda") if value.type == "cpu" else value
        if isinstance(value, _PLAIN):
            return value
        self._tensors_of(value, set())
        return copy.deepcopy(value, self._memo)

    def _function(self, function: FunctionType) -> FunctionType:
        cells = tuple(
            self._cell(name, cell)
            for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        )
        made = FunctionType(
            function.__code__,
            self._namespace(function),
            function.__name__,
            self.copied(function.__defaults__),
            cells,
        )
        made.__kwdefaults__ = self.copied(function.__kwdefaults__)
        return made

    def _cell(self, name: str, cell: CellType) -> CellType:
        try:
            return CellType(self._variable(name, cell.cell_contents))
        except ValueError:  # not filled yet
            return CellType()

    def _namespace(self, function: FunctionType) -> dict[str, Any]:
        """The function's module, with what training works on copied, and its own functions bound to the copy."""
        original = function.__globals__
        known = self._globals.get(id(original))
        if known is None:
            known = self._globals[id(original)] = dict(original)
            for name, value in original.items():
                if isinstance(value, FunctionType) and value.__globals__ is original:
                    known[name] = FunctionType(
                        value.__code__, known, value.__name__, value.__defaults__, value.__closure__
                    )
                elif name.startswith("__"):
                    continue  # Python's own: `__builtins__` is a dict too
                elif isinstance(value, _TRAINED) or name == "device":
                    known[name] = self._global(name, value)
        return known

    def _global(self, name: str, value: Any) -> Any:
        """The module's own collections are copied where they can be: a lock or a file in one is no part of training."""
        try:
            return self._variable(name, value)
        except TypeError:
            if isinstance(value, list | tuple | dict):
                return value
            raise

    def _variable(self, name: str, value: Any) -> Any:
        if name == "device" and value == "cpu":
            return "cuda"
        return self.copied(value)

    def _tensors_of(self, value: Any, seen: set[int]) -> None:
        """Put a stand-in into the memo for every tensor below `value`."""
        if id(value) in seen or isinstance(value, _PLAIN):
            return
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            if id(value) not in self._memo:
                self._memo[id(value)] = _stand_in(value)
                self._keep.append(value)
        elif isinstance(value, nn.Module):
            for part in (value._parameters, value._buffers, value._modules):
                self._tensors_of(part, seen)
            self._tensors_of({k: v for k, v in vars(value).items() if not k.startswith("_")}, seen)
        elif isinstance(value, Mapping):
            for key, item in value.items():
                self._tensors_of(key, seen)
                self._tensors_of(item, seen)
        elif isinstance(value, list | tuple | set):
            for item in value:
                self._tensors_of(item, seen)
        elif hasattr(value, "__dict__") and not isinstance(value, type):
            self._tensors_of(vars(value), seen)


_PLAIN = (str, bytes, int, float, bool, complex, type(None), torch.dtype, ModuleType, type, FunctionType)
_TRAINED = (
    torch.Tensor, nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler,
    torch.device, list, tuple, dict,
)  # fmt: skip


def _stand_in(tensor: torch.Tensor) -> torch.Tensor:
    if is_lazy(tensor):  # of a lazy module: no shape yet, only a class
        kind: Any = type(tensor)
        lazy: torch.Tensor = kind(requires_grad=tensor.requires_grad, device="cuda", dtype=tensor.data.dtype)
        return lazy
    size = tensor.shape
    if tensor.dim() == 0 and not isinstance(tensor, nn.Parameter):  # counters and the like: values that steer
        return tensor.detach().clone()
    if not isinstance(tensor, nn.Parameter) and tensor.nbytes <= MAX_TRACKED_BYTES and tensor.is_contiguous():
        return tensor.detach().to("cuda").requires_grad_(tensor.requires_grad)
    made = torch.empty_strided(size, tensor.stride(), dtype=tensor.dtype, device="cuda")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made.requires_grad_(tensor.requires_grad)


def standard_step(
    model: Any, batch: Any, make_optimizer: Callable[[Any], torch.optim.Optimizer]
) -> Callable[[], None]:
    """Zero the gradients, forward, loss, backward, optimizer step: for a model and a batch of whatever form.

    The loss is the model's own (`output.loss`) where it gives one, cross entropy where the batch ends in whole numbers, squared
    error where it ends in others, and the mean of the output where there is no target.
    """
    optimizer = make_optimizer(parameter for parameter in model.parameters() if parameter.requires_grad)

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()

    return step


def loss_of(model: Any, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return _as_loss(model(**batch), None)
    if isinstance(batch, list | tuple):
        inputs, target = (batch[:-1], batch[-1]) if len(batch) > 1 else (batch, None)
        return _as_loss(model(*inputs), target)
    return _as_loss(model(batch), None)


def _as_loss(output: Any, target: Any) -> Any:
    own = getattr(output, "loss", None)
    if own is not None:
        return own
    output = getattr(output, "logits", output)
    if isinstance(output, list | tuple):
        output = output[0]
    if isinstance(target, torch.Tensor):
        if not target.is_floating_point() and output.dim() >= 2:
            # Classes last, as language models have them.
            if output.dim() > 2 and output.shape[:-1] == target.shape:
                output, target = output.flatten(0, -2), target.flatten()
            return nn.functional.cross_entropy(output, target)
        return nn.functional.mse_loss(output, target.to(output.dtype))
    return output.float().mean()
