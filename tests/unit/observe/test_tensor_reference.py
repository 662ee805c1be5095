import weakref

import pytest
import torch
from torch import nn

from legroom.observe.leaks.created_objects import CreatedObjects
from legroom.observe.tensor_reference import TensorReference


def test_a_tensor_with_a_reference_can_be_swapped() -> None:
    tensor, other = torch.zeros(2), torch.ones(2)
    references = TensorReference(tensor), TensorReference(other)
    torch.utils.swap_tensors(tensor, other)
    assert tensor.tolist() == [1, 1]
    assert references[0]() is tensor
    assert references[1]() is other


def test_a_tensor_with_a_weak_reference_of_the_program_cannot_be_swapped() -> None:
    tensor = torch.zeros(2)
    references = TensorReference(tensor), weakref.ref(tensor)
    with pytest.raises(RuntimeError, match="weakref"):
        torch.utils.swap_tensors(tensor, torch.ones(2))
    assert references[0]() is references[1]()


def test_a_module_can_be_converted_by_swapping_while_its_objects_are_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    created = CreatedObjects()
    model = nn.Linear(2, 2)
    created.read_earlier_objects()
    monkeypatch.setattr(torch.__future__, "_swap_module_params_on_conversion", True)
    weight = model.weight
    model.to(torch.float64)
    assert model.weight is weight
    assert weight.dtype == torch.float64
