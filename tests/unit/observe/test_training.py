"""The search for optimizers keeps nothing alive."""

import gc
import weakref

import torch

from legroom.observe.training import has_optimizer


def test_the_search_for_optimizers_keeps_no_references():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    module = torch.nn.Linear(1, 1)
    reference = weakref.ref(module)
    gc.disable()
    try:
        assert has_optimizer()
        del module
        assert reference() is None
    finally:
        gc.enable()
    assert optimizer.param_groups
