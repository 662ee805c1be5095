"""Sizes that fitted, kept from one run to the next: a run that is started again does not have to fail first."""

from typing import Any

import torch
from torch import nn

from legroom.train.sizes.micro_batch_size import Sizer
from legroom.train.sizes.plan_files import plan_key, recall, remember


class PlanMemory:
    """What one training remembers. Only a GPU's sizes are worth it."""

    def __init__(self, model: nn.Module, device: torch.device, precision: Any) -> None:
        self._model, self._device = model, device
        self._precision = precision if isinstance(precision, str) else getattr(precision, "name", None)
        self._key: str | None = None
        self._kept = 0
        self.is_new = device.type == "cuda"
        """Whether nobody has asked yet."""

    def recalled(self, batch: Any, most: int | None) -> Sizer | None:
        """A sizer that knows what fitted in an earlier run, if there was one."""
        self.is_new = False
        self._key = plan_key(self._model, batch=batch, precision=self._precision, device=self._device)
        remembered = recall(self._key)
        return None if remembered is None else Sizer(most=most, remembered=remembered)

    def keep(self, sizer: Sizer) -> None:
        """Write the sizes down if they have changed."""
        if self._key is not None and len(sizer.choices) != self._kept:
            self._kept = len(sizer.choices)
            remember(self._key, sizer.remember())
