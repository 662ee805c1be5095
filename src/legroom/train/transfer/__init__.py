"""Transfer learning: a trained model, a new head, and only what must be trained in memory.

head = legroom.transfer.replace_head(model, classes=5)
frozen = legroom.transfer.freeze(model, except_=head, batch=batch)
print(frozen)                                       # what it saves, predicted
optimizer = torch.optim.AdamW(legroom.transfer.param_groups(model, lr=1e-3))
"""

from legroom.train.transfer.freezing import Frozen, freeze, unfreeze
from legroom.train.transfer.groups import param_groups
from legroom.train.transfer.heads import replace_head
from legroom.train.transfer.unfreezing import GradualUnfreezing, blocks

__all__ = ["Frozen", "GradualUnfreezing", "blocks", "freeze", "param_groups", "replace_head", "unfreeze"]
