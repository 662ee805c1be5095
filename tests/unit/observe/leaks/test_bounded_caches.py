"""Caches with a limit that is too large for the models or tensors in them."""

import functools
from typing import Any

import pytest
import torch
from tests.unit.observe.leaks.loops import leaks_of
from torch import nn


class _Fold:
    def __init__(self) -> None:
        self.model = nn.Linear(6, 2)


@pytest.mark.parametrize("argument", [nn.Linear, _Fold, torch.Tensor])
def test_a_cache_of_the_default_size_that_retains_models_or_tensors_is_reported(argument: type) -> None:
    # The cache is created here, because scans do not read objects that existed before the test.
    @functools.lru_cache
    def cached(value: Any) -> Any:
        return list(value.parameters()) if isinstance(value, nn.Module) else value

    def use(step: int, loss: Any, output: Any) -> None:
        if argument is torch.Tensor:
            cached(output.detach().clone())
        else:
            cached(_Fold() if argument is _Fold else nn.Linear(6, 2))

    (leak,) = leaks_of(use, iterations=44)
    assert (leak.how, leak.name) == ("cache", "cached")


def test_a_small_cache_of_models_is_not_a_leak() -> None:
    @functools.lru_cache(maxsize=4)
    def cached(model: nn.Module) -> list[torch.Tensor]:
        return list(model.parameters())

    assert leaks_of(lambda step, loss, output: cached(nn.Linear(6, 2)) and None, iterations=44) == []


def test_a_cache_of_the_default_size_with_numbers_as_keys_is_not_a_leak() -> None:
    @functools.lru_cache
    def mask(size: int) -> torch.Tensor:
        return torch.ones(size, 4)

    assert leaks_of(lambda step, loss, output: mask(step).sum() and None, iterations=44) == []
