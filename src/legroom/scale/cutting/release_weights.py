"""A model from which some tensors are taken: what another stage holds."""

import torch
from torch import nn


def let_go(model: nn.Module, names: set[str]) -> None:
    """Empty the places of these tensors; the modules stay, and with them names, and modes of training or evaluation."""
    for name in names:
        prefix, _, last = name.rpartition(".")
        module = model.get_submodule(prefix)
        for holder in (module._parameters, module._buffers, vars(module)):
            if isinstance(holder.get(last), torch.Tensor):
                holder[last] = None


def move_plain(model: nn.Module, names: set[str], device: torch.device) -> None:
    """Tensors that are plain attributes do not move with their modules: move those."""
    for name in names:
        prefix, _, last = name.rpartition(".")
        module = model.get_submodule(prefix)
        held = vars(module).get(last)
        if isinstance(held, torch.Tensor):
            setattr(module, last, held.to(device))
