"""How a run ended survives in its capture."""

from legroom.diagnose.report.exit_status import ExitStatus, as_notes, from_notes
from legroom.memory.events import Note


def test_an_ending_comes_back_from_its_notes():
    ending = ExitStatus(exit_code=1, ended="raised", error="E: x", traceback="Traceback\nE: x", seconds=1.5)
    assert from_notes(as_notes(ending)) == ending


def test_the_last_word_counts():
    notes = as_notes(ExitStatus(exit_code=1, ended="raised")) + as_notes(
        ExitStatus(exit_code=3, ended="left")
    )
    assert from_notes(notes).exit_code == 3


def test_a_run_that_was_killed_has_no_ending():
    assert from_notes([Note(2.0, "fork", "")]) == ExitStatus(exit_code=None, ended="unknown", seconds=2.0)


def test_a_strangers_nonsense_is_no_ending():
    for text in ("{", "[1]", '{"exit_code": "x", "seconds": "y"}'):
        assert from_notes([Note(0.0, "exit", text)]).exit_code is None
