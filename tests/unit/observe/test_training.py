"""Which optimizers there are is found out without keeping anything alive."""

import gc
import weakref

import torch

from legroom.observe.training import has_optimizer


def test_looking_for_optimizers_keeps_nothing_until_the_next_collection():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    kept = torch.nn.Linear(1, 1)
    is_gone = weakref.ref(kept)
    gc.disable()
    try:
        assert has_optimizer()
        del kept
        assert is_gone() is None
    finally:
        gc.enable()
    assert optimizer.param_groups
