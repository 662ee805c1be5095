"""All exceptions derive from `LegroomError`."""

import inspect
import re

import pytest

from legroom import errors
from legroom.errors import (
    CaptureError,
    CaptureVersionError,
    LegroomError,
    MissingExtra,
    Unsupported,
    UsageError,
    install_command,
)

ALL = [
    value for value in vars(errors).values() if inspect.isclass(value) and value.__module__ == errors.__name__
]


@pytest.mark.parametrize("error", ALL)
def test_every_error_is_a_legroom_error(error: type[Exception]) -> None:
    assert issubclass(error, LegroomError)


@pytest.mark.parametrize(
    ("error", "also"),
    [
        (UsageError, ValueError),
        (MissingExtra, ImportError),
        (Unsupported, NotImplementedError),
        (CaptureVersionError, CaptureError),
    ],
)
def test_an_error_also_derives_from_the_matching_python_error(
    error: type[Exception], also: type[Exception]
) -> None:
    assert issubclass(error, also)


def test_the_docstring_lists_every_error() -> None:
    drawn = re.findall(r"^ {4}[│├└─ ]*(\w+)", errors.__doc__ or "", re.MULTILINE)
    assert drawn == [error.__name__ for error in ALL]


def test_a_missing_extra_names_the_command_that_installs_it() -> None:
    error = MissingExtra("wandb", "log")
    assert str(error) == f"wandb is not installed: {install_command('log')}"
    assert error.extra == "log"
