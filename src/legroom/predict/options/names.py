"""The means of saving memory that an estimate tries; `means_in_force` puts them to a run."""

from enum import StrEnum


class Means(StrEnum):
    """What can be done to make a run fit, cheapest first."""

    FUSED = "fused optimizer"
    LOOP = "optimizer in a loop"
    AUTOCAST = "bf16 autocast"
    CHECKPOINT = "activation checkpointing"
    LIGHTER_OPTIMIZER = "8-bit optimizer state"
    SPILL = "activations in host memory"
    FREEZE = "frozen backbone"
