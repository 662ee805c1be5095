"""Copies a step function and the objects it uses to a traced device. The originals do not change.

Copied tensors have no data, so a copy needs no memory. Small tensors that are not parameters keep their values.
Modules, optimizers and containers are deep-copied. If two objects share a tensor, their copies also share a tensor. In
copied variables, the device `cpu` becomes `cuda`, because a step that was written without a GPU uses `cpu`.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from legroom.errors import UsageError
from legroom.observe.fake.known_values import MAX_TRACKED_BYTES


class DeviceCopies:
    """Copies objects to `cuda`. All copies use the same memo, so shared objects stay shared."""

    def __init__(self) -> None:
        self._memo: dict[int, Any] = {}
        self._keep: list[Any] = []
        self._globals: dict[int, dict[str, Any]] = {}

    def copied(self, value: Any) -> Any:
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, MethodType) and not isinstance(value.__self__, type | ModuleType):
            return MethodType(value.__func__, self.copied(value.__self__))
        if isinstance(value, torch.device):
            return torch.device("cuda") if value.type == "cpu" else value
        if isinstance(value, _PLAIN):
            return value
        self._copy_tensors(value, set())
        return copy.deepcopy(value, self._memo)

    def _function(self, function: FunctionType) -> FunctionType:
        cells = tuple(
            self._cell(name, cell)
            for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        )
        copied = FunctionType(
            function.__code__,
            self._namespace(function),
            function.__name__,
            self.copied(function.__defaults__),
            cells,
        )
        copied.__kwdefaults__ = self.copied(function.__kwdefaults__)
        return copied

    def _cell(self, name: str, cell: CellType) -> CellType:
        try:
            return CellType(self._variable(name, cell.cell_contents))
        except ValueError:  # not assigned yet
            return CellType()

    def _namespace(self, function: FunctionType) -> dict[str, Any]:
        """Return a copy of the globals of a function. Training objects among the globals are copied, and functions of
        the module use the copied globals.
        """
        original = function.__globals__
        copied = self._globals.get(id(original))
        if copied is None:
            copied = self._globals[id(original)] = dict(original)
            for name, value in original.items():
                if isinstance(value, FunctionType) and value.__globals__ is original:
                    copied[name] = FunctionType(
                        value.__code__, copied, value.__name__, value.__defaults__, value.__closure__
                    )
                elif name.startswith("__"):
                    continue  # `__builtins__` is a dict too
                elif isinstance(value, _TRAINED) or name == "device":
                    copied[name] = self._global(name, value)
        return copied

    def _global(self, name: str, value: Any) -> Any:
        """Return a copy of a global. A collection that contains a lock or a file cannot be copied and is used
        unchanged.
        """
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

    def _copy_tensors(self, value: Any, seen: set[int]) -> None:
        if id(value) in seen or isinstance(value, _PLAIN):
            return
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            if id(value) not in self._memo:
                self._memo[id(value)] = _copy_tensor(value)
                self._keep.append(value)
        elif isinstance(value, nn.Module):
            for part in (value._parameters, value._buffers, value._modules):
                self._copy_tensors(part, seen)
            self._copy_tensors({k: v for k, v in vars(value).items() if not k.startswith("_")}, seen)
        elif isinstance(value, Mapping):
            for key, item in value.items():
                self._copy_tensors(key, seen)
                self._copy_tensors(item, seen)
        elif isinstance(value, list | tuple | set):
            for item in value:
                self._copy_tensors(item, seen)
        elif hasattr(value, "__dict__") and not isinstance(value, type):
            self._copy_tensors(vars(value), seen)


_PLAIN = (str, bytes, int, float, bool, complex, type(None), torch.dtype, ModuleType, type, FunctionType)
_TRAINED = (
    torch.Tensor, nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler,
    torch.device, list, tuple, dict,
)  # fmt: skip


def _copy_tensor(tensor: torch.Tensor) -> torch.Tensor:
    if is_lazy(tensor):  # a lazy module: no shape yet, only a class
        kind: Any = type(tensor)
        lazy: torch.Tensor = kind(requires_grad=tensor.requires_grad, device="cuda", dtype=tensor.data.dtype)
        return lazy
    size = tensor.shape
    if tensor.dim() == 0 and not isinstance(
        tensor, nn.Parameter
    ):  # counters and other values that control the program
        return tensor.detach().clone()
    has_values = not isinstance(tensor, nn.Parameter) and not tensor.is_meta
    if has_values and tensor.nbytes <= MAX_TRACKED_BYTES and tensor.is_contiguous():
        return tensor.detach().to("cuda").requires_grad_(tensor.requires_grad)
    copied = torch.empty_strided(size, tensor.stride(), dtype=tensor.dtype, device="cuda")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(copied, requires_grad=tensor.requires_grad)
    return copied.requires_grad_(tensor.requires_grad)


def standard_step(
    model: Any, batch: Any, make_optimizer: Callable[[Any], torch.optim.Optimizer]
) -> Callable[[], None]:
    """Return a training step that zeroes the gradients and runs the forward pass, the loss, the backward pass and the
    optimizer.

    If the model's output has a `loss` (an attribute or a key), this loss is used. If the output contains several
    losses, their sum is used. Otherwise, the last element of the batch is the target. The loss is cross entropy if the
    target has an integer dtype, and mean squared error otherwise. If the batch has no target, the loss is the mean of
    the output.
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


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
        return
    parts = value.values() if isinstance(value, Mapping) else value
    for part in (
        parts if isinstance(parts, Iterable) else vars(value).values() if hasattr(value, "__dict__") else ()
    ):
        if not isinstance(part, str):
            yield from _tensors(part)


def _as_loss(output: Any, target: Any) -> Any:
    values = output if isinstance(output, Mapping) else getattr(output, "__dict__", {})
    for name in ("loss", "logits"):
        value = values.get(name)
        if value is None:
            value = getattr(output, name, None)
        if isinstance(value, torch.Tensor):
            if name == "loss":
                return value if value.numel() == 1 else value.mean()
            output = value
    tensors = [tensor for tensor in _tensors(output) if tensor.is_floating_point()]
    if not tensors:
        raise UsageError(
            f"The model's output ({type(output).__name__}) contains no floating-point tensor, so the training step cannot be "
            "predicted. Return the loss or a tensor, for example as `output['loss']`."
        )
    losses = [tensor for tensor in tensors if tensor.numel() == 1 and tensor.requires_grad]
    if len(losses) == len(tensors) > 1:
        return torch.stack([loss.reshape(()) for loss in losses]).sum()
    output = tensors[0]
    if isinstance(target, torch.Tensor):
        if not target.is_floating_point() and output.dim() >= 2:
            # Language models have the classes in the last dimension.
            if output.dim() > 2 and output.shape[:-1] == target.shape:
                output, target = output.flatten(0, -2), target.flatten()
            return nn.functional.cross_entropy(output, target)
        return nn.functional.mse_loss(output, target.to(output.dtype))
    return output.float().mean()
