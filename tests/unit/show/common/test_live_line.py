"""The live status line does not interfere with the output of the script."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from legroom.show.common.live_line import LiveLine, fit_status, format_status
from legroom.units import GiB, MiB


@dataclass
class StatusValues:
    step: int = 41
    seconds_per_step: float = 0.35
    allocated: int = 300 * MiB
    reserved: int = 400 * MiB
    peak_reserved: int = 512 * MiB
    capacity: int = 8 * GiB


class Terminal:
    """A pseudo-terminal and its visible content."""

    def __init__(self) -> None:
        if not hasattr(os, "openpty"):
            pytest.skip("this system has no pseudo-terminals")
        self.master, slave = os.openpty()
        os.set_blocking(self.master, False)
        self.stream = os.fdopen(slave, "w", buffering=1)

    def screen(self) -> list[str]:
        """The visible lines; supports carriage return, newline and clear line."""
        self.stream.flush()
        lines, column = [""], 0
        text = b"".join(iter(self._read, b"")).decode().replace("\x1b[2K", "\x00")
        for character in text:
            if character == "\n":
                lines.append("")
            elif character == "\r":
                column = 0
            elif character == "\x00":
                lines[-1] = " " * len(lines[-1])
            else:
                line = lines[-1].ljust(column)
                lines[-1] = line[:column] + character + line[column + 1 :]
                column += 1
        return [line.rstrip() for line in lines]

    def _read(self) -> bytes:
        try:
            return os.read(self.master, 65536)
        except OSError:
            return b""


@pytest.fixture(autouse=True)
def no_automatic_repaint(monkeypatch):
    """Disable automatic repainting."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(LiveLine, "REPAINT_SECONDS", 1000)


@contextmanager
def on_terminal() -> Iterator[tuple[Terminal, LiveLine]]:
    """Replace sys.stdout and sys.stderr with a terminal that has a live line. This is not a fixture, because pytest
    replaces both streams between setup and call."""
    terminal, saved = Terminal(), (sys.stdout, sys.stderr)
    sys.stdout = sys.stderr = terminal.stream
    live = LiveLine(StatusValues)
    live.start()
    try:
        yield terminal, live
    finally:
        live.stop()
        sys.stdout, sys.stderr = saved


def test_line_shows_step_and_memory():
    with on_terminal() as (terminal, live):
        live.paint()
        assert terminal.screen() == [
            "legroom  step 41  300.0 MiB allocated  peak 512.0 MiB reserved of 8.00 GiB"
        ]


def test_output_of_the_script_is_unchanged():
    with on_terminal() as (terminal, live):
        live.paint()
        print("epoch 1")
        live.paint()
        print("epoch 2")
        live.stop()
        assert terminal.screen() == ["epoch 1", "epoch 2", ""]


def test_unfinished_line_is_not_overwritten():
    with on_terminal() as (terminal, live):
        sys.stdout.write("\r 10%|#    |")
        live.paint()
        sys.stdout.write("\r 20%|##   |")
        live.paint()
        assert terminal.screen() == [" 20%|##   |"]


def test_bytes_written_to_the_buffer_are_noticed():
    with on_terminal() as (terminal, live):
        live.paint()
        sys.stdout.buffer.write(b"raw")
        sys.stdout.buffer.flush()
        live.paint()
        assert terminal.screen() == ["raw"]


def test_line_is_hidden_during_input(monkeypatch):
    painting = []
    monkeypatch.setattr("builtins.input", lambda prompt: (painting[0].paint(), "yes")[1])
    with on_terminal() as (terminal, live):
        painting.append(live)
        assert input("sure? ") == "yes"
        assert terminal.screen() == [""]


def test_streams_stay_the_same_objects():
    with on_terminal() as (terminal, _):
        assert sys.stdout is terminal.stream
        assert sys.stdout.isatty()
        assert isinstance(sys.stdout, io.TextIOWrapper)


def test_streams_are_restored():
    before = input
    with on_terminal() as (terminal, live):
        assert input is not before
        live.stop()
        assert input is before
        assert "write" not in vars(terminal.stream)
        assert "write" not in vars(terminal.stream.buffer)


def test_forked_child_restores_the_streams():
    with on_terminal() as (terminal, live):
        live.paint()
        live.abandon()
        assert "write" not in vars(terminal.stream)


def test_pipe_gets_plain_lines(monkeypatch):
    monkeypatch.setattr(LiveLine, "FIRST_PLAIN_SECONDS", 0.0)
    monkeypatch.setattr(LiveLine, "PLAIN_SECONDS", 1000.0)
    read, write = os.pipe()
    with os.fdopen(write, "w") as stream:
        live = LiveLine(StatusValues, stream=stream)
        live.start()
        line = os.read(read, 1000)
        live.stop()
    os.close(read)
    assert line == b"legroom: " + format_status(StatusValues()).encode() + b"\n"


def test_a_plain_line_is_not_appended_to_a_progress_bar(monkeypatch):
    monkeypatch.setattr(LiveLine, "FIRST_PLAIN_SECONDS", 1000.0)
    read, write = os.pipe()
    with os.fdopen(write, "w") as stream:
        live = LiveLine(StatusValues, stream=stream)
        live.start()
        stream.write("\r10%")
        stream.flush()
        live._print()
        live._print()
        live.stop()
    line = f"legroom: {format_status(StatusValues())}\n"
    assert os.read(read, 1000).decode() == f"\r10%\n{line}{line}"
    os.close(read)


def test_stream_without_a_file_descriptor_gets_nothing():
    stream = io.StringIO()
    live = LiveLine(StatusValues, stream=stream)
    live.start()
    live.stop()
    assert stream.getvalue() == ""


@pytest.mark.parametrize("columns", range(20, 120, 7))
def test_line_fits_the_terminal(columns):
    assert len(fit_status(StatusValues(), columns)) <= columns


def test_peak_is_kept_on_a_narrow_terminal():
    assert fit_status(StatusValues(), 50) == "legroom  peak 512.0 MiB reserved of 8.00 GiB"


def test_nothing_allocated_yet():
    status = StatusValues(step=0, allocated=0, reserved=0, peak_reserved=0)
    assert format_status(status) == "step 0, no GPU memory allocated yet"


def test_first_step_has_no_speed():
    assert "first step" in format_status(StatusValues(step=0, seconds_per_step=0.0))
