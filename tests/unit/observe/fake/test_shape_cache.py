"""What is remembered of an operation is what fake mode says of it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from legroom.observe.fake.shape_cache import ShapeMemory

aten: Any = torch.ops.aten


class Remembering:
    """A memory over a fake mode, and how often the mode was asked."""

    def __init__(self) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.asked = 0
        self.memory = ShapeMemory(self.mode, self.ask)

    def ask(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        self.asked += 1
        return self.mode.__torch_dispatch__(func, (), args, kwargs)

    def tensor(self, *shape: int, dtype: torch.dtype = torch.float32) -> Any:
        with self.mode:
            return torch.empty(*shape, dtype=dtype)

    def twice(self, func: Any, make: Callable[[], tuple[Any, ...]], **kwargs: Any) -> tuple[Any, Any, Any]:
        """The second result, its arguments, and what fake mode says of these."""
        self.memory.run(func, make(), kwargs)
        args = make()
        asked = self.asked
        result = self.memory.run(func, args, kwargs)
        self.remembered = self.asked == asked
        return result, args, self.ask(func, args, kwargs)


@pytest.fixture
def fakes() -> Remembering:
    return Remembering()


def looks(tensor: Any) -> tuple[Any, ...]:
    return (
        tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device,
        tensor.untyped_storage().nbytes(), tensor.requires_grad, type(tensor),
    )  # fmt: skip


def test_new_results_look_as_in_fake_mode_and_have_memory_of_their_own(fakes: Remembering) -> None:
    result, args, truth = fakes.twice(aten.mm.default, lambda: (fakes.tensor(3, 4), fakes.tensor(4, 5)))
    assert fakes.remembered
    assert looks(result) == looks(truth)
    assert result.untyped_storage()._cdata not in {arg.untyped_storage()._cdata for arg in args}


def test_a_view_shares_the_memory_of_what_it_is_a_view_of(fakes: Remembering) -> None:
    result, args, truth = fakes.twice(aten.select.int, lambda: (fakes.tensor(3, 4), 0, 2))
    assert fakes.remembered
    assert looks(result) == looks(truth)
    assert result.untyped_storage()._cdata == args[0].untyped_storage()._cdata


def test_several_views_at_once(fakes: Remembering) -> None:
    result, args, truth = fakes.twice(aten.split.Tensor, lambda: (fakes.tensor(2, 6), 2, 1))
    assert fakes.remembered
    assert [looks(one) for one in result] == [looks(one) for one in truth]
    assert {one.untyped_storage()._cdata for one in result} == {args[0].untyped_storage()._cdata}


def test_what_is_changed_in_place_is_returned_itself(fakes: Remembering) -> None:
    result, args, _ = fakes.twice(aten.add_.Tensor, lambda: (fakes.tensor(3), fakes.tensor(3)))
    assert fakes.remembered
    assert result is args[0]


def test_several_results_and_missing_ones(fakes: Remembering) -> None:
    def make() -> tuple[Any, ...]:
        x, mean = fakes.tensor(2, 8), fakes.tensor(2, 1)
        return x, x, [8], mean, mean, None, None, [True, False, False]

    result, _, truth = fakes.twice(aten.native_layer_norm_backward.default, make)
    assert [one is None for one in result] == [one is None for one in truth] == [False, True, True]
    assert looks(result[0]) == looks(truth[0])


def test_lists_of_new_tensors(fakes: Remembering) -> None:
    result, _, truth = fakes.twice(
        aten._foreach_sqrt.default, lambda: ([fakes.tensor(2), fakes.tensor(3, 3)],)
    )
    assert fakes.remembered
    assert [looks(one) for one in result] == [looks(one) for one in truth]


def test_a_number_and_a_bool_are_different_cases(fakes: Remembering) -> None:
    x = fakes.tensor(3, dtype=torch.bool)
    assert fakes.memory.run(aten.add.Tensor, (x, True), {}).dtype == torch.bool
    assert fakes.memory.run(aten.add.Tensor, (x, 1), {}).dtype == torch.int64
    assert fakes.memory.run(aten.add.Tensor, (x, 1.0), {}).dtype == torch.float32


def test_the_default_dtype_is_part_of_a_case(fakes: Remembering, request: pytest.FixtureRequest) -> None:
    x = fakes.tensor(3, dtype=torch.int64)
    assert fakes.memory.run(aten.div.Tensor, (x, 2), {}).dtype == torch.float32
    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    torch.set_default_dtype(torch.float64)
    assert fakes.memory.run(aten.div.Tensor, (x, 2), {}).dtype == torch.float64


def test_strides_are_part_of_a_case(fakes: Remembering) -> None:
    plain, turned = fakes.tensor(2, 3), fakes.ask(aten.t.default, (fakes.tensor(3, 2),), {})
    assert fakes.memory.run(aten.neg.default, (plain,), {}).stride() == (3, 1)
    assert fakes.memory.run(aten.neg.default, (turned,), {}).stride() == (1, 2)


@pytest.mark.parametrize(
    ("func", "make"),
    [
        pytest.param(aten.resize_.default, lambda f: (f.tensor(3), [5]), id="moves its memory"),
        pytest.param(aten.t_.default, lambda f: (f.tensor(3, 2),), id="changes a shape in place"),
        pytest.param(aten.add.Tensor, lambda f: (f.tensor(2), torch.ones(2)), id="a real tensor among them"),
        pytest.param(aten.neg.default, lambda f: (f.tensor(2, dtype=torch.complex64),), id="complex numbers"),
    ],
)
def test_what_is_not_plain_is_left_to_fake_mode(fakes: Remembering, func: Any, make: Any) -> None:
    fakes.memory.run(func, make(fakes), {})
    fakes.memory.run(func, make(fakes), {})
    assert fakes.asked == 2


def test_a_sparse_result_is_left_to_fake_mode(fakes: Remembering) -> None:
    """The gradient of an embedding with `sparse=True` has no storage of its own."""
    gradient, words = fakes.tensor(4, 8), fakes.tensor(4, dtype=torch.int64)

    result, _, _ = fakes.twice(
        aten.embedding_backward.default, lambda: (gradient, words, 100, -1, False, True)
    )

    assert result.layout is torch.sparse_coo
    assert not fakes.remembered


def test_a_view_of_a_parameter_is_remembered_for_evaluation_too(fakes: Remembering) -> None:
    """Torch refuses a view that was made for inference of a tensor that was not."""
    weight = fakes.tensor(6, 4)
    fakes.memory.run(aten.t.default, (weight,), {})
    with torch.inference_mode():
        view = fakes.memory.run(aten.t.default, (weight,), {})
        made = fakes.memory.run(aten.t.default, (fakes.tensor(6, 4),), {})
    assert not view.is_inference()
    assert made.is_inference()
