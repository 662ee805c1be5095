"""Formatting of locations, durations and counts."""

import os

import pytest

from legroom.memory.event_base import Phase
from legroom.show.common.formatting import clean, format_count, format_duration, format_location, format_phase


def test_file_below_the_working_directory_is_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert format_location(os.path.join(tmp_path, "sub", "train.py"), 31) == "sub/train.py:31"


def test_other_file_keeps_its_absolute_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert format_location("/elsewhere/train.py", 31) == "/elsewhere/train.py:31"
    assert format_location("/elsewhere/jobs/../model/../net.py", 31) == "/elsewhere/net.py:31"


def test_long_path_is_shortened_at_the_start():
    shown = format_location("/a" * 50 + "/model.py", 31, max_length=20)
    assert shown == "…/a/a/a/model.py:31"


def test_the_names_in_a_long_path_stay_complete():
    path = "/home/user/experiments/vision_transformers/train_with_mixup.py"
    assert format_location(path, 8) == "…/vision_transformers/train_with_mixup.py:8"
    assert format_location(path, 8, max_length=30) == "…/train_with_mixup.py:8"
    assert format_location(path, 8, max_length=10) == "train_with_mixup.py:8"


def test_missing_file_is_an_unknown_line():
    assert format_location(None, None) == "unknown line"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.44, "0.4 s"), (42.4, "42 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")]
)
def test_durations_have_a_suitable_unit(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize(("number", "text"), [(0, "0 steps"), (1, "1 step"), (12000, "12,000 steps")])
def test_counts_are_singular_or_plural(number, text):
    assert format_count(number, "step") == text


@pytest.mark.parametrize("phase", Phase)
def test_every_phase_has_a_description(phase):
    assert format_phase(phase) != str(phase)


def test_control_characters_are_replaced():
    assert clean("a\x1b[2Jb\x07\nc") == "a�[2Jb�\nc"


def test_colors_are_removed():
    assert clean("a\x1b[1mb\x1b[0m\x1b[38;5;1mc") == "abc"
