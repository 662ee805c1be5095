"""Records the tensors that already exist when a recording starts in the middle of a program.

A recorder detects a storage only when an operation returns it. The parameters of an earlier model would therefore
appear to be allocated by the operation that changes them first.
"""

from collections.abc import Iterator

import torch
from torch import nn

from legroom.memory.event_base import Category
from legroom.observe.dispatch.recorder import Recorder
from legroom.observe.dispatch.storages import storage_of
from legroom.observe.instances import find_instances


def record_existing_tensors(recorder: Recorder) -> None:
    """Record every existing tensor that has a Python object as host memory. Tensors that only C++ code references are
    recorded when an operation changes them.
    """
    found = find_instances((torch.Tensor, nn.Module, torch.optim.Optimizer))
    tensors = [each for each in found if isinstance(each, torch.Tensor)]
    with torch._C.DisableTorchFunction():
        for tensor in tensors:
            for each, category in _with_gradient(tensor):
                if each.device.type == "meta" or each.is_sparse:
                    continue
                storage = storage_of(each)
                if storage is not None:
                    recorder.register_existing(storage, 0, category)
        for each in found:
            if isinstance(each, nn.Module):
                for buffer in each.__dict__.get("_buffers", {}).values():
                    if isinstance(buffer, torch.Tensor):
                        recorder.categories.note_category(buffer, Category.BUFFER)
            elif isinstance(each, torch.optim.Optimizer):
                recorder.categories.tag_optimizer(each)
        recorder.categories.find_activations(
            [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
        )


def _with_gradient(tensor: torch.Tensor) -> Iterator[tuple[torch.Tensor, Category]]:
    if isinstance(tensor, nn.Parameter):
        yield tensor, Category.PARAMETER
    elif tensor.grad_fn is not None:
        yield tensor, Category.RESULT
    else:
        yield tensor, Category.INPUT
    if tensor.is_leaf and tensor.grad is not None:
        yield tensor.grad, Category.GRADIENT
