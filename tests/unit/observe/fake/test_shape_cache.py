"""Cached results of an operation equal the results of `FakeTensorMode`."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from legroom.observe.fake.shape_cache import ShapeCache

aten: Any = torch.ops.aten


class CountingCache:
    """A shape cache that counts the calls of its fake mode."""

    def __init__(self) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.calls = 0
        self.cache = ShapeCache(self.mode, self.run_in_mode)

    def run_in_mode(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        self.calls += 1
        return self.mode.__torch_dispatch__(func, (), args, kwargs)

    def tensor(self, *shape: int, dtype: torch.dtype = torch.float32) -> Any:
        with self.mode:
            return torch.empty(*shape, dtype=dtype)

    def twice(self, func: Any, make: Callable[[], tuple[Any, ...]], **kwargs: Any) -> tuple[Any, Any, Any]:
        """Call the cache twice. Return the second result, its arguments, and the result of fake mode for these
        arguments."""
        self.cache.run(func, make(), kwargs)
        args = make()
        calls = self.calls
        result = self.cache.run(func, args, kwargs)
        self.was_cached = self.calls == calls
        return result, args, self.run_in_mode(func, args, kwargs)


@pytest.fixture
def fakes() -> CountingCache:
    return CountingCache()


def metadata(tensor: Any) -> tuple[Any, ...]:
    return (
        tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device,
        tensor.untyped_storage().nbytes(), tensor.requires_grad, type(tensor),
    )  # fmt: skip


def test_new_results_have_the_metadata_of_fake_mode_and_their_own_storage(fakes: CountingCache) -> None:
    result, args, expected = fakes.twice(aten.mm.default, lambda: (fakes.tensor(3, 4), fakes.tensor(4, 5)))
    assert fakes.was_cached
    assert metadata(result) == metadata(expected)
    assert result.untyped_storage()._cdata not in {arg.untyped_storage()._cdata for arg in args}


def test_a_view_shares_the_storage_of_its_base(fakes: CountingCache) -> None:
    result, args, expected = fakes.twice(aten.select.int, lambda: (fakes.tensor(3, 4), 0, 2))
    assert fakes.was_cached
    assert metadata(result) == metadata(expected)
    assert result.untyped_storage()._cdata == args[0].untyped_storage()._cdata


def test_views_in_a_list_share_the_storage_of_their_base(fakes: CountingCache) -> None:
    result, args, expected = fakes.twice(aten.split.Tensor, lambda: (fakes.tensor(2, 6), 2, 1))
    assert fakes.was_cached
    assert [metadata(one) for one in result] == [metadata(one) for one in expected]
    assert {one.untyped_storage()._cdata for one in result} == {args[0].untyped_storage()._cdata}


def test_an_in_place_operation_returns_its_first_argument(fakes: CountingCache) -> None:
    result, args, _ = fakes.twice(aten.add_.Tensor, lambda: (fakes.tensor(3), fakes.tensor(3)))
    assert fakes.was_cached
    assert result is args[0]


def test_results_that_are_none_are_cached(fakes: CountingCache) -> None:
    def make() -> tuple[Any, ...]:
        x, mean = fakes.tensor(2, 8), fakes.tensor(2, 1)
        return x, x, [8], mean, mean, None, None, [True, False, False]

    result, _, expected = fakes.twice(aten.native_layer_norm_backward.default, make)
    assert [one is None for one in result] == [one is None for one in expected] == [False, True, True]
    assert metadata(result[0]) == metadata(expected[0])


def test_new_tensors_in_a_list_are_cached(fakes: CountingCache) -> None:
    result, _, expected = fakes.twice(
        aten._foreach_sqrt.default, lambda: ([fakes.tensor(2), fakes.tensor(3, 3)],)
    )
    assert fakes.was_cached
    assert [metadata(one) for one in result] == [metadata(one) for one in expected]


def test_a_number_and_a_bool_have_different_keys(fakes: CountingCache) -> None:
    x = fakes.tensor(3, dtype=torch.bool)
    assert fakes.cache.run(aten.add.Tensor, (x, True), {}).dtype == torch.bool
    assert fakes.cache.run(aten.add.Tensor, (x, 1), {}).dtype == torch.int64
    assert fakes.cache.run(aten.add.Tensor, (x, 1.0), {}).dtype == torch.float32


def test_the_default_dtype_is_part_of_the_key(fakes: CountingCache, request: pytest.FixtureRequest) -> None:
    x = fakes.tensor(3, dtype=torch.int64)
    assert fakes.cache.run(aten.div.Tensor, (x, 2), {}).dtype == torch.float32
    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    torch.set_default_dtype(torch.float64)
    assert fakes.cache.run(aten.div.Tensor, (x, 2), {}).dtype == torch.float64


def test_strides_are_part_of_the_key(fakes: CountingCache) -> None:
    contiguous, transposed = fakes.tensor(2, 3), fakes.run_in_mode(aten.t.default, (fakes.tensor(3, 2),), {})
    assert fakes.cache.run(aten.neg.default, (contiguous,), {}).stride() == (3, 1)
    assert fakes.cache.run(aten.neg.default, (transposed,), {}).stride() == (1, 2)


@pytest.mark.parametrize(
    ("func", "make"),
    [
        pytest.param(aten.resize_.default, lambda f: (f.tensor(3), [5]), id="replaces its storage"),
        pytest.param(aten.t_.default, lambda f: (f.tensor(3, 2),), id="changes a shape in place"),
        pytest.param(
            aten.add.Tensor, lambda f: (f.tensor(2), torch.ones(2)), id="a real tensor among the arguments"
        ),
        pytest.param(aten.neg.default, lambda f: (f.tensor(2, dtype=torch.complex64),), id="complex numbers"),
    ],
)
def test_irregular_operations_run_in_fake_mode(fakes: CountingCache, func: Any, make: Any) -> None:
    fakes.cache.run(func, make(fakes), {})
    fakes.cache.run(func, make(fakes), {})
    assert fakes.calls == 2


def test_an_operation_with_a_sparse_result_runs_in_fake_mode(fakes: CountingCache) -> None:
    """The gradient of an embedding with `sparse=True` has no storage."""
    gradient, indices = fakes.tensor(4, 8), fakes.tensor(4, dtype=torch.int64)

    result, _, _ = fakes.twice(
        aten.embedding_backward.default, lambda: (gradient, indices, 100, -1, False, True)
    )

    assert result.layout is torch.sparse_coo
    assert not fakes.was_cached


def test_a_cached_view_of_a_parameter_works_in_inference_mode(fakes: CountingCache) -> None:
    """torch rejects an inference view of a normal tensor."""
    weight = fakes.tensor(6, 4)
    fakes.cache.run(aten.t.default, (weight,), {})
    with torch.inference_mode():
        view = fakes.cache.run(aten.t.default, (weight,), {})
        new = fakes.cache.run(aten.t.default, (fakes.tensor(6, 4),), {})
    assert not view.is_inference()
    assert new.is_inference()
