"""Releases the tensors of a model that belong to other stages."""

import torch
from torch import nn


def release_tensors(model: nn.Module, names: set[str]) -> None:
    """Set the parameters, buffers and tensor attributes with these names to None. The modules stay in the model."""
    for name in names:
        prefix, _, last = name.rpartition(".")
        module = model.get_submodule(prefix)
        for holder in (module._parameters, module._buffers, vars(module)):
            if isinstance(holder.get(last), torch.Tensor):
                holder[last] = None


def move_plain_attributes(model: nn.Module, names: set[str], device: torch.device) -> None:
    """Move tensors that are plain attributes, which `module.to` does not move."""
    for name in names:
        prefix, _, last = name.rpartition(".")
        module = model.get_submodule(prefix)
        value = vars(module).get(last)
        if isinstance(value, torch.Tensor):
            setattr(module, last, value.to(device))
