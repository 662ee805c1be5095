"""The memory-saving options that an estimate tries, and that `apply` applies to a run. This module does not import
torch.
"""

from enum import StrEnum


class MemoryOption(StrEnum):
    FUSED = "fused optimizer"
    FOR_LOOP = "for-loop optimizer"
    AUTOCAST = "bf16 autocast"
    CHECKPOINT = "activation checkpointing"
    EIGHT_BIT_OPTIMIZER = "8-bit optimizer state"
    SPILL = "activations in host memory"
    FREEZE = "frozen backbone"
