"""Tracebacks show the user's frames and fold the others."""

import json
import re
import traceback
from pathlib import Path

import pytest
import torch
from torch._utils import ExceptionWrapper

from legroom.observe.virtual.gpu import VirtualGPU
from legroom.show.report.tracebacks import (
    format_error_line,
    format_short_traceback,
    format_traceback,
    innermost_user_location,
    omit_dispatch_frames,
)


def is_mine(file: str) -> bool:
    return file == __file__


def failing() -> None:
    torch.nn.Linear(2, 2)(torch.zeros(3))


def caught(function) -> BaseException:
    with pytest.raises(Exception) as info:
        function()
    return info.value


def test_library_frames_are_folded():
    text = format_short_traceback(caught(failing), is_mine)
    assert re.search(r"in failing\n    torch.nn.Linear.*\n(?:.*\^.*\n)?  … \d+ frames in torch\n", text)
    assert "modules/linear.py" not in text


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with VirtualGPU("1GiB"):
            return torch.nn.functional.linear(x, torch.zeros(3, 2, device="cuda"))


def raised_by_replica() -> None:
    try:
        Model()(torch.zeros(2, 2, device="meta"))
    except Exception:
        wrapper = ExceptionWrapper(where="in replica 1 on device 1")
    wrapper.reraise()


def test_the_frames_of_a_replica_are_folded():
    error = caught(raised_by_replica)
    message = str(error)
    assert "module.py" in message
    assert "placement.py" in message
    text = format_short_traceback(error, is_mine)
    original = text.partition("in replica 1 on device 1.\nOriginal Traceback (most recent call last):\n")[2]
    assert re.match(
        r'  File ".*test_tracebacks.py", line \d+, in raised_by_replica\n    Model\(\).*\n(?:.*\^.*\n)?'
        r'  … \d+ frames in torch\n  File ".*test_tracebacks.py", line \d+, in forward\n    return torch.*\n'
        r"(?:.*\^.*\n)?\w*Error: ",
        original,
    )
    assert "module.py" not in text
    assert "legroom/observe" not in text
    assert str(error) == message, "the error itself is unchanged"
    whole = format_traceback(error)
    assert "module.py" in whole
    for shown in (whole, format_error_line(error)):
        assert "legroom/observe" not in shown


def test_standard_library_is_called_python():
    assert re.search(
        r"  … \d+ frames in Python\n", format_short_traceback(caught(lambda: json.loads("{")), is_mine)
    )


def test_error_line_is_kept():
    assert (
        format_short_traceback(caught(failing), is_mine).rstrip().endswith(format_error_line(caught(failing)))
    )


def test_causes_are_folded():
    def wrapping():
        try:
            failing()
        except RuntimeError as error:
            raise ValueError("wrapped") from error

    text = format_short_traceback(caught(wrapping), is_mine)
    assert text.count("Traceback (most recent call last)") == 2
    assert "modules/linear.py" not in text


def test_groups_are_folded():
    def grouping():
        raise ExceptionGroup("several", [caught(failing)])

    assert "modules/linear.py" not in format_short_traceback(caught(grouping), is_mine)


def test_full_traceback_omits_only_legroom_frames():
    from legroom.units import parse_size

    text = format_traceback(caught(lambda: parse_size("x")))
    assert "units.py" not in text
    assert "test_tracebacks.py" in text


def test_error_line_is_one_line():
    error = caught(failing)
    error.add_note("a note")
    assert format_error_line(error).startswith("RuntimeError: ")
    assert "\n" not in format_error_line(error)


def test_error_line_of_a_syntax_error_starts_with_its_type():
    assert format_error_line(caught(lambda: compile("f(:", "x", "exec"))).startswith("SyntaxError:")


def test_innermost_user_line_is_found():
    line = failing.__code__.co_firstlineno + 1
    assert innermost_user_location(caught(failing), is_mine).endswith(f"test_tracebacks.py:{line}")


def test_line_is_unknown_without_a_user_frame():
    assert innermost_user_location(caught(failing), lambda file: False) == "an unknown line"


def test_a_misspelled_name_is_suggested_as_python_does():
    channels = 3
    try:
        chanels  # noqa: B018
    except NameError as caught:
        error = caught
    expected = "NameError: name 'chanels' is not defined. Did you mean: 'channels'?"
    assert format_traceback(error).splitlines()[-1] == expected
    assert format_error_line(error) == expected
    assert channels


def test_hooks_of_the_program_get_the_frames_of_a_run_without_a_virtual_gpu() -> None:
    def plain() -> None:
        torch.nn.Linear(2, 2)(torch.zeros(3))

    def virtual() -> None:
        torch.nn.Linear(2, 2, device="cuda")(torch.zeros(3, device="cuda"))

    with VirtualGPU("1GiB"):
        error = caught(virtual)
    omit_dispatch_frames(error)
    plain_frames, frames = (
        [
            name
            for each in traceback.extract_tb(found.__traceback__)
            if (name := Path(each.filename).name) != "module.py"
        ]
        for found in (caught(plain), error)
    )  # with hooks, a module has one more frame
    assert frames == plain_frames
    assert "linear.py" in frames
