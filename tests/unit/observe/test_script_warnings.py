"""Warnings of torch in a recorded program are shown with the user's line."""

import warnings

import pytest
import torch

import legroom
from legroom.observe.script import user_line_warnings


def warns(value: torch.Tensor) -> object:
    return value.grad  # torch warns here, because the tensor is not a leaf


LINE = warns.__code__.co_firstlineno + 1


@pytest.fixture
def warned() -> list[tuple[str, int]]:
    """Return the file and line that are shown for the warning of a program."""
    shown: list[tuple[str, int]] = []
    torch.set_warn_always(True)
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("always")
        patch.setattr(
            warnings, "showwarning", lambda message, kind, file, line, *_: shown.append((file, line))
        )
        with user_line_warnings(), legroom.VirtualGPU("1GiB"):
            warns(torch.ones(1, device="cuda", requires_grad=True) * 2)
    torch.set_warn_always(False)
    return shown


def test_a_warning_of_torch_has_the_user_line(warned: list[tuple[str, int]]) -> None:
    assert warned == [(__file__, LINE)]


def test_warnings_of_the_program_are_unchanged() -> None:
    with warnings.catch_warnings(record=True) as caught, user_line_warnings():
        warnings.simplefilter("always")
        warnings.warn_explicit("old", DeprecationWarning, "library.py", 7)
    assert [(each.filename, each.lineno) for each in caught] == [("library.py", 7)]


def test_a_replaced_showwarning_is_kept() -> None:
    def mine(*_: object) -> None:
        pass

    before = warnings.showwarning
    try:
        with user_line_warnings():
            warnings.showwarning = mine
        assert warnings.showwarning is mine
    finally:
        warnings.showwarning = before
