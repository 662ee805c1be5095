"""Indices out of range raise an exception at their operation, with the range; other operations are unaffected."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from legroom.observe.dispatch.checks.index_checks import IndexChecks

OUT_OF_RANGE: list[tuple[str, Callable[[], object], str]] = [
    ("embedding", lambda: F.embedding(torch.tensor([1, 9]), torch.zeros(5, 2)), "values from 1 to 9, but the allowed range is 0 to 4"),
    ("label", lambda: F.cross_entropy(torch.zeros(2, 3), torch.tensor([0, 3])), "values from 0 to 3, but the allowed range is 0 to 2"),
    ("label -1", lambda: F.cross_entropy(torch.zeros(2, 3), torch.tensor([0, -1])), "values from -1 to 0"),
    ("gather", lambda: torch.zeros(2, 3).gather(1, torch.tensor([[3], [0]])), "values from 0 to 3, but the allowed range is 0 to 2"),
    ("index", lambda: torch.zeros(4)[torch.tensor([0, 4])], "values from 0 to 4, but the allowed range is -4 to 3"),
    ("probabilities", lambda: F.binary_cross_entropy(torch.tensor([1.5]), torch.tensor([1.0])), "the allowed range is 0 to 1"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("function", "message"), [case[1:] for case in OUT_OF_RANGE], ids=[case[0] for case in OUT_OF_RANGE]
)
def test_values_out_of_range_raise_with_the_allowed_range(
    function: Callable[[], object], message: str
) -> None:
    with IndexChecks("cpu"), pytest.raises((IndexError, RuntimeError)) as raised:
        function()
    assert message in "".join(raised.value.__notes__)


def test_values_in_range_are_accepted() -> None:
    with IndexChecks("cpu"):
        assert torch.arange(4)[torch.tensor([-1, 0])].tolist() == [3, 0]
        assert F.cross_entropy(torch.zeros(2, 3), torch.tensor([0, -100])).isfinite()
        assert torch.arange(4)[torch.tensor([True, False, False, True])].tolist() == [0, 3]
        assert torch.zeros(3).scatter(0, torch.tensor([2]), 1.0).tolist() == [0, 0, 1]
        assert F.embedding(torch.zeros(0, dtype=torch.long), torch.zeros(2, 2)).shape == (0, 2)


def test_other_devices_are_not_checked() -> None:
    with IndexChecks("cuda"), pytest.raises(IndexError) as raised:
        F.embedding(torch.tensor([9]), torch.zeros(5, 2))
    assert not getattr(raised.value, "__notes__", [])
