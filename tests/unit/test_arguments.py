"""Arguments of a wrong type: one line that names the argument and the values that it accepts."""

from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import torch
from torch import nn

import legroom
from legroom.arguments import check_count, check_names, check_path, check_positive
from legroom.errors import UsageError
from legroom.gpus.catalog import parse_gpus
from legroom.tuning.study import Study


def test_valid_values_are_returned() -> None:
    assert check_path("folder", "runs") == check_path("folder", PurePosixPath("runs")) == Path("runs")
    assert check_count("keep", 1) == 1
    assert check_count("batch_dim", 0, minimum=0) == 0
    assert check_names("unsplit", {"mask"}, "['mask']") == ("mask",)
    assert check_positive("clip_norm", torch.tensor(0.5)) == 0.5


@pytest.mark.parametrize("value", [3, 2.5, None, [], b"x", True, "", object()])
def test_a_value_that_is_not_a_path_is_rejected(value: Any) -> None:
    with pytest.raises(UsageError, match=r"^folder=.* is not a path\. Pass a string or a pathlib\.Path\.$"):
        check_path("folder", value)


@pytest.mark.parametrize("value", [0, 2.5, None, [], "3", True])
def test_a_value_that_is_not_a_count_is_rejected(value: Any) -> None:
    with pytest.raises(UsageError, match=r"^keep=.* is not valid\. Pass an integer of 1 or more, or None\.$"):
        check_count("keep", value, otherwise="None")


@pytest.mark.parametrize("value", [0, -1.0, "1", True, [], float("nan"), object(), torch.ones(2)])
def test_a_value_that_is_not_a_positive_number_is_rejected(value: Any) -> None:
    with pytest.raises(
        UsageError, match=r"^clip_norm=.* is not valid\. Pass a number above 0, or omit clip_norm\."
    ):
        check_positive("clip_norm", value)


class Unprintable:
    def __repr__(self) -> str:
        raise AssertionError


def test_an_object_is_described_by_its_type() -> None:
    with pytest.raises(UsageError, match=r"^folder=<Unprintable> is not a path"):
        check_path("folder", Unprintable())


def guard(**options: Any) -> legroom.Guard:
    model = nn.Linear(2, 2)
    return legroom.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)


PUBLIC: dict[str, Callable[[], object]] = {
    "folder=3": lambda: legroom.Checkpoints(3),  # type: ignore[arg-type]
    "keep='all'": lambda: legroom.Checkpoints("runs", keep="all"),  # type: ignore[arg-type]
    "unsplit='mask'": lambda: guard(unsplit="mask"),
    "batch_dim=None": lambda: guard(batch_dim=None),
    "clip_norm=<list>": lambda: guard(clip_norm=[1.0]),
    "fallbacks=None": lambda: guard(fallbacks=None),
    "scaler= must be a torch.amp.GradScaler, not bool": lambda: guard(scaler=True),
    "steps='2'": lambda: legroom.estimate(nn.Linear(2, 2), torch.zeros(2, 2), gpu="1GiB", steps="2"),  # type: ignore[arg-type]
    "multiple_of=None": lambda: legroom.max_batch(
        nn.Linear(2, 2), torch.zeros(2, 2), gpu="1GiB", multiple_of=None
    ),  # type: ignore[arg-type]
    "start=None": lambda: legroom.find_batch(print, torch.zeros(2, 2), start=None),  # type: ignore[arg-type]
    "input_size=3": lambda: legroom.summary(nn.Linear(2, 2), input_size=3),  # type: ignore[arg-type]
    "device= is not a valid device": lambda: legroom.precision(device="gpu"),
    "not float": lambda: parse_gpus(2.5),  # type: ignore[arg-type]
    "folder=None": lambda: Study.load(None),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("text", PUBLIC)
def test_public_functions_name_the_wrong_argument(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        PUBLIC[text]()
    assert text in str(raised.value)
    assert "\n" not in str(raised.value)
