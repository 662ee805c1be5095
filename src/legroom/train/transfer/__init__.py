"""Transfer learning: a pretrained model gets a new head, and only its trainable part needs gradients and optimizer state.

head = legroom.transfer.replace_head(model, num_classes=5)
frozen = legroom.transfer.freeze(model, trainable=head, batch=batch)
print(frozen)                                       # the predicted saving
optimizer = torch.optim.AdamW(legroom.transfer.param_groups(model, lr=1e-3))
"""

from legroom.train.transfer.freezing import FreezeResult, freeze, param_groups, unfreeze
from legroom.train.transfer.heads import replace_head
from legroom.train.transfer.unfreezing import GradualUnfreezing, blocks

__all__ = [
    "FreezeResult",
    "GradualUnfreezing",
    "blocks",
    "freeze",
    "param_groups",
    "replace_head",
    "unfreeze",
]
