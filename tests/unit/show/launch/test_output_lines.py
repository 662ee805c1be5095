"""Output of several ranks on one terminal: complete lines with the rank as a prefix."""

import io
from pathlib import Path

from legroom.scale.launching.folder import LaunchFolder, RankExit
from legroom.show.launch import output_lines
from legroom.show.launch.output_lines import RankLines


def shown(tmp_path: Path, **files: str) -> tuple[str, str]:
    """Return the text on stdout and stderr after rank 3 has written `files`."""
    names = LaunchFolder(tmp_path).files(3)
    for name, text in files.items():
        with getattr(names, name).open("w", newline="") as file:
            file.write(text)
    out, err = io.StringIO(), io.StringIO()
    lines = RankLines(out, err)
    lines.follow(3, names)
    lines.drain()
    return out.getvalue(), err.getvalue()


def test_every_line_has_its_rank_as_a_prefix(tmp_path):
    assert shown(tmp_path, out="a\nb\n", err="c\n") == ("[3] a\n[3] b\n", "[3] c\n")


def test_last_line_without_a_line_break_is_shown(tmp_path):
    assert shown(tmp_path, out="a\nhalf")[0] == "[3] a\n[3] half\n"


def test_partial_line_is_shown_when_complete(tmp_path):
    names = LaunchFolder(tmp_path).files(0)
    out = io.StringIO()
    lines = RankLines(out, io.StringIO())
    lines.follow(0, names)
    names.out.write_text("ha")
    lines._poll_once()
    assert out.getvalue() == ""
    names.out.write_text("half\n")
    lines._poll_once()
    assert out.getvalue() == "[0] half\n"


def test_traceback_of_a_failed_rank_is_omitted(tmp_path):
    exit_record = RankExit(
        rank=3, time=0.0, exit_code=1, ended="raised", error="E", log_size=len("warning\n")
    )
    exit_record.write(LaunchFolder(tmp_path).files(3).exit_record)
    assert shown(tmp_path, err="warning\nTraceback (most recent call last):\n  boom\n")[1] == "[3] warning\n"


def test_finished_progress_bar_is_shown_once(tmp_path):
    assert shown(tmp_path, err="\r 10%|#\r100%|##########\n")[1] == "[3] 100%|##########\n"


def test_running_progress_bar_is_shown_periodically(tmp_path, monkeypatch):
    names = LaunchFolder(tmp_path).files(0)
    err = io.StringIO()
    lines = RankLines(io.StringIO(), err)
    lines.follow(0, names)
    names.err.write_text("\r 10%|#")
    lines._poll_once()
    assert err.getvalue() == ""
    monkeypatch.setattr(output_lines, "REPAINT_SECONDS", -1.0)
    lines._poll_once()
    assert err.getvalue() == "[0]  10%|#\n"


def test_colors_are_kept_and_cursor_movements_removed(tmp_path):
    assert shown(tmp_path, out="\x1b[31mred\x1b[0m\x1b[2K\x1b[A!\x07\n")[0] == "[3] \x1b[31mred\x1b[0m!�\n"
