"""Implements strategy `split`. One process places the layers of the model on several GPUs, which compute one after the
other.

The strategy is model parallelism, as if the code of the model called `.to("cuda:0")` and `.to("cuda:1")`, but the code
does not change. The layers are distributed so that all GPUs use about the same memory. Inputs are moved to the GPU of
each module. An operation on tensors from two GPUs runs on the GPU that comes later in the model. The result is moved
to the first GPU, where the batch is.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from legroom.scale import trees
from legroom.scale.cutting.forward_graph import named_tensors
from legroom.scale.cutting.release_weights import move_plain_attributes
from legroom.scale.cutting.stages import StageProgram
from legroom.scale.strategies.engine import WrappedModelEngine
from legroom.scale.world import RankDevices
from legroom.train.guarding.batches.splitting import result_to_device, to_device


def split(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, devices: RankDevices, placement: dict[str, int]
) -> WrappedModelEngine:
    return WrappedModelEngine(
        "split",
        SplitModel(model, list(devices.devices), placement),
        model,
        optimizer,
        batch_device=devices.device,
    )


class SplitModel(nn.Module):
    def __init__(self, module: nn.Module, devices: Sequence[torch.device], placement: dict[str, int]) -> None:
        super().__init__()
        self.module = module
        self._devices = list(devices)
        _move_tensors(module, {name: devices[index] for name, index in placement.items()})
        for submodule, device in _modules_on_one_device(module):
            submodule.register_forward_pre_hook(_move_inputs(device), with_kwargs=True)

    def forward(self, *arguments: Any, **named: Any) -> Any:
        with _RunOnLaterDevice(self._devices):
            result = self.module(*arguments, **named)
        return result_to_device(result, self._devices[0])


class _RunOnLaterDevice(TorchFunctionMode):
    """Runs an operation on a single device if its tensors are on several devices. If one of the tensors is a parameter,
    the operation runs on the device of the parameter. Otherwise, the operation runs on the device that comes last in
    the model.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        super().__init__()
        self._order = {device: index for index, device in enumerate(devices)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in trees.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if len(tensors) < 2:
            return func(*args, **kwargs)
        devices = [tensor.device for tensor in tensors]
        if all(device == devices[0] for device in devices):
            return func(*args, **kwargs)
        known = [device for device in devices if device in self._order]
        if not known:
            return func(*args, **kwargs)
        weights = [tensor.device for tensor in tensors if isinstance(tensor, nn.Parameter)]
        target = weights[0] if weights else max(known, key=lambda device: self._order[device])

        def move(leaf: Any) -> Any:
            return leaf.to(target) if isinstance(leaf, torch.Tensor) and leaf.device in self._order else leaf

        args, kwargs = trees.tree_map(move, (args, kwargs))
        return func(*args, **kwargs)


def placement_of_stages(model: nn.Module, programs: Sequence[StageProgram]) -> dict[str, int]:
    """Place every tensor on the device of the first stage that needs it. Unused tensors are placed on the first
    device."""
    placement: dict[str, int] = {}
    by_tensor: dict[int, int] = {}
    named = dict(named_tensors(model))
    for stage, program in enumerate(programs):
        for name in program.tensors(model):
            placement[name] = by_tensor.setdefault(id(named[name]), stage)
    return {name: placement.get(name, by_tensor.get(id(tensor), 0)) for name, tensor in named.items()}


def placement_by_size(model: nn.Module, devices: int) -> dict[str, int]:
    """Place tensors in order, so that each device stores about the same number of bytes. This placement is used for a
    model whose forward pass cannot be recorded.
    """
    named = list(named_tensors(model))
    total = sum({id(tensor): tensor.nbytes for _, tensor in named}.values())
    by_tensor: dict[int, int] = {}
    before = 0
    for _, tensor in named:
        if id(tensor) not in by_tensor:
            by_tensor[id(tensor)] = min(devices - 1, before * devices // max(1, total))
            before += tensor.nbytes
    return _keep_layers_together({name: by_tensor[id(tensor)] for name, tensor in named})


def _keep_layers_together(placement: dict[str, int]) -> dict[str, int]:
    first: dict[str, int] = {}
    return {name: first.setdefault(name.rpartition(".")[0], index) for name, index in placement.items()}


def _move_tensors(model: nn.Module, placement: dict[str, torch.device]) -> None:
    for name, device in placement.items():
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
            move_plain_attributes(model, {name}, device)


def _modules_on_one_device(model: nn.Module) -> list[tuple[nn.Module, torch.device]]:
    """Return the largest modules whose tensors are all on one device. Modules without tensors are not included."""
    found: list[tuple[nn.Module, torch.device]] = []

    def visit(module: nn.Module) -> None:
        devices = {tensor.device for _, tensor in named_tensors(module)}
        if len(devices) == 1:
            found.append((module, devices.pop()))
        elif devices:
            for child in module.children():
                visit(child)

    visit(model)
    return found


def _move_inputs(device: torch.device) -> Any:
    def move(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
        return to_device(arguments, device), to_device(named, device)

    return move
