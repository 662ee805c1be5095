"""What a run spilled, in its capture and back."""

import pytest

from legroom.diagnose.report.spilled import Spilled, as_note, from_notes
from legroom.memory.events import Note


def test_an_account_survives_its_note():
    account = Spilled(moved_bytes=3, moved_tensors=2, peak_host_bytes=1, left_bytes=4, seconds=0.5)
    assert from_notes([as_note(Spilled(), 0.0), as_note(account, 1.0)]) == account


def test_a_run_without_spilling_has_none():
    assert from_notes([Note(0.0, "exit", "{}")]) is None


@pytest.mark.parametrize(
    "text", ["", "[]", "7", '{"moved_bytes": "many"}', '{"moved_bytes": -1}', '{"other": 1}']
)
def test_a_note_that_makes_no_sense_is_none(text):
    assert from_notes([Note(0.0, "spill", text)]) is None
