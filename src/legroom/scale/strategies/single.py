"""One process and one device: the model is moved there, and nothing else."""

import torch
from torch import nn

from legroom.scale.strategies.engine import Direct
from legroom.scale.world import Place


def alone(model: nn.Module, optimizer: torch.optim.Optimizer | None, place: Place) -> Direct:
    model.to(place.device)
    return Direct("alone", model, model, optimizer, batch_device=place.device)
