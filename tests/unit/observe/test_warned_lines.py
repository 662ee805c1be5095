"""Warnings of torch's on a program that is watched name the program's own line."""

import warnings

import pytest
import torch

import legroom
from legroom.observe.warned_lines import warned_where_they_arise


def doubtful(value: torch.Tensor) -> float:
    return float(value)  # torch warns here: it requires a gradient


LINE = doubtful.__code__.co_firstlineno + 1


@pytest.fixture
def warned() -> list[tuple[str, int]]:
    """Where the one warning of a program is shown to be."""
    shown: list[tuple[str, int]] = []
    torch.set_warn_always(True)
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("always")
        patch.setattr(
            warnings, "showwarning", lambda message, kind, file, line, *_: shown.append((file, line))
        )
        with warned_where_they_arise(), legroom.VirtualGPU("1GiB"):
            doubtful(torch.ones(1, device="cuda", requires_grad=True) * 2)
    torch.set_warn_always(False)
    return shown


def test_a_warning_from_below_us_names_the_programs_line(warned: list[tuple[str, int]]) -> None:
    assert warned == [(__file__, LINE)]


def test_a_programs_own_warnings_are_left_alone() -> None:
    with warnings.catch_warnings(record=True) as caught, warned_where_they_arise():
        warnings.simplefilter("always")
        warnings.warn_explicit("old", DeprecationWarning, "library.py", 7)
    assert [(each.filename, each.lineno) for each in caught] == [("library.py", 7)]


def test_who_shows_warnings_otherwise_stays() -> None:
    def mine(*_: object) -> None:
        pass

    before = warnings.showwarning
    try:
        with warned_where_they_arise():
            warnings.showwarning = mine
        assert warnings.showwarning is mine
    finally:
        warnings.showwarning = before
