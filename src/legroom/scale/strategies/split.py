"""`split`: one process, the model's layers in order on several GPUs, each GPU waiting for the one before.

The plain `.to("cuda:0")` / `.to("cuda:1")` of hand-made model parallelism, cut where the GPUs are equally full. The model runs as it is
written: modules that lie on one GPU whole get their inputs moved there, and an operation between modules whose tensors lie on
two GPUs is done on the later one. The result goes back to the first GPU, where the batch is.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from legroom.scale import trees
from legroom.scale.cutting.forward_graph import tensors_of
from legroom.scale.cutting.release_weights import move_plain
from legroom.scale.cutting.stages import Part
from legroom.scale.strategies.engine import Direct
from legroom.scale.world import Place
from legroom.train.guarding.batches.splitting import to_device


def split(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, place: Place, homes: dict[str, int]
) -> Direct:
    """`homes`: of every tensor of the model, which of the process's devices it goes to."""
    return Direct(
        "split", SplitModel(model, list(place.devices), homes), model, optimizer, batch_device=place.device
    )


class SplitModel(nn.Module):
    """A model whose tensors lie on several devices."""

    def __init__(self, module: nn.Module, devices: Sequence[torch.device], homes: dict[str, int]) -> None:
        super().__init__()
        self.module = module
        self._devices = list(devices)
        _place(module, [devices[home] for home in homes.values()], list(homes))
        for whole, device in _whole_modules(module):
            whole.register_forward_pre_hook(_bring(device), with_kwargs=True)

    def forward(self, *arguments: Any, **named: Any) -> Any:
        with _OnTheLaterDevice(self._devices):
            result = self.module(*arguments, **named)
        return to_device(result, self._devices[0])


class _OnTheLaterDevice(TorchFunctionMode):
    """Operations on tensors of several devices are done on the one that comes last in the model, or where a parameter lies."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        super().__init__()
        self._order = {device: place for place, device in enumerate(devices)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in trees.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if len(tensors) < 2:
            return func(*args, **kwargs)
        devices = [tensor.device for tensor in tensors]
        if all(device == devices[0] for device in devices):
            return func(*args, **kwargs)
        ours = [device for device in devices if device in self._order]
        if not ours:
            return func(*args, **kwargs)
        weights = [tensor.device for tensor in tensors if isinstance(tensor, nn.Parameter)]
        target = weights[0] if weights else max(ours, key=lambda device: self._order[device])

        def bring(leaf: Any) -> Any:
            return leaf.to(target) if isinstance(leaf, torch.Tensor) and leaf.device in self._order else leaf

        args, kwargs = trees.tree_map(bring, (args, kwargs))
        return func(*args, **kwargs)


def homes_of_parts(model: nn.Module, parts: Sequence[Part]) -> dict[str, int]:
    """Every tensor goes with the first part that needs it; what none needs, with the first of all."""
    homes: dict[str, int] = {}
    by_tensor: dict[int, int] = {}
    named = dict(tensors_of(model))
    for place, part in enumerate(parts):
        for name in part.tensors(model):
            homes[name] = by_tensor.setdefault(id(named[name]), place)
    return {name: homes.get(name, by_tensor.get(id(tensor), 0)) for name, tensor in named.items()}


def homes_by_weight(model: nn.Module, devices: int) -> dict[str, int]:
    """For a model whose forward pass cannot be written down: its tensors in order, as many bytes on each device."""
    named = list(tensors_of(model))
    whole = sum({id(tensor): tensor.nbytes for _, tensor in named}.values())
    by_tensor: dict[int, int] = {}
    before = 0
    for _, tensor in named:
        if id(tensor) not in by_tensor:
            by_tensor[id(tensor)] = min(devices - 1, before * devices // max(1, whole))
            before += tensor.nbytes
    return _layers_together(model, {name: by_tensor[id(tensor)] for name, tensor in named})


def _layers_together(model: nn.Module, homes: dict[str, int]) -> dict[str, int]:
    """A layer's own tensors are used together: they go where its first one goes."""
    first: dict[str, int] = {}
    return {name: first.setdefault(name.rpartition(".")[0], home) for name, home in homes.items()}


def _place(model: nn.Module, devices: Sequence[torch.device], names: Sequence[str]) -> None:
    for name, device in zip(names, devices, strict=True):
        prefix, _, last = name.rpartition(".")
        module = model.get_submodule(prefix)
        if module._parameters.get(last) is not None:
            parameter = module._parameters[last]
            assert parameter is not None
            parameter.data = parameter.data.to(device)
        elif module._buffers.get(last) is not None:
            buffer = module._buffers[last]
            assert buffer is not None
            module._buffers[last] = buffer.to(device)
        else:
            move_plain(model, {name}, device)


def _whole_modules(model: nn.Module) -> list[tuple[nn.Module, torch.device]]:
    """The largest modules all of whose tensors lie on one device; those without any stay where their inputs are."""
    found: list[tuple[nn.Module, torch.device]] = []

    def look(module: nn.Module) -> None:
        devices = {tensor.device for _, tensor in tensors_of(module)}
        if len(devices) == 1:
            found.append((module, devices.pop()))
        elif devices:
            for child in module.children():
                look(child)

    look(model)
    return found


def _bring(device: torch.device) -> Any:
    def bring(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
        return to_device(arguments, device), to_device(named, device)

    return bring
