"""The check of the setting that determines the batch size."""

from types import SimpleNamespace
from typing import Any

import pytest

from legroom.gpus.catalog import find_gpu
from legroom.observe.script import Script
from legroom.observe.source.batch_setting import SIZE, BatchSetting
from legroom.predict.setting_check import SettingCheck
from legroom.predict.tracing.script import CannotTrace, OutOfTime
from legroom.predict.tracing.trace import Trace


def setting_named(name: str, rank: int) -> BatchSetting:
    return BatchSetting(name=name, value=32, rank=rank, text=f"{name} {SIZE}")


def reason_of(
    monkeypatch: pytest.MonkeyPatch, failure: Exception | None, settings: list[BatchSetting]
) -> str:
    """Return the reason that is reported if starting the script again raises `failure`, or has no effect."""
    gpu = find_gpu("1GiB")
    trace = Trace(gpu=gpu, mode="fake")

    class Restarted:
        shapes = ((32, 8),)

        def __enter__(self) -> "Restarted":
            return self

        def __exit__(self, *error: object) -> None: ...

        def start(self, **options: object) -> Any:
            return SimpleNamespace(result=lambda: trace)

    def restarted(*args: object) -> Restarted:
        if failure is not None:
            raise failure
        return Restarted()

    monkeypatch.setattr(SettingCheck, "_restarted", restarted)
    traced: Any = SimpleNamespace(settings=settings, shapes=((32, 8),))
    check = SettingCheck(Script("train.py"), gpu, 2, traced, {}, float("inf"))
    assert check.by_trace(trace) is None
    return check.reason


def test_the_reason_why_no_other_batch_size_was_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = [setting_named("--batch_size", 0), setting_named("--width", 4)]
    assert reason_of(monkeypatch, OutOfTime(""), settings) == (
        "a trace with another value of `--batch_size` exceeded the time limit"
    )
    assert reason_of(monkeypatch, CannotTrace(""), settings) == (
        "the script failed with another value of `--batch_size`"
    )
    assert reason_of(monkeypatch, None, settings) == (
        "a larger value of `--batch_size` did not increase the memory of the traced steps"
    )


def test_a_script_without_an_argument_for_the_batch_size_has_no_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert reason_of(monkeypatch, None, []) == ""
    assert reason_of(monkeypatch, CannotTrace(""), [setting_named("--width", 4)]) == ""
