"""Ctrl+C reaches the program although Python discards exceptions of callbacks."""

import signal
import sys
import time
import weakref

import pytest

from legroom.observe import interrupts
from legroom.observe.interrupts import deliver_interrupts


class Thing:
    pass


@pytest.fixture(autouse=True)
def hook(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    ignored: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    deliver_interrupts()
    return ignored


def free_with_interrupt(module: str) -> None:
    def callback(_: object) -> None:
        signal.raise_signal(signal.SIGINT)
        time.sleep(0)

    callback.__module__ = module
    thing = Thing()
    reference = weakref.ref(thing, callback)
    del thing
    assert reference() is None


def test_an_interrupt_in_a_callback_of_legroom_is_repeated(hook: list[object]) -> None:
    with pytest.raises(KeyboardInterrupt):
        free_with_interrupt("legroom.observe")
        for _ in range(200):
            time.sleep(10 * interrupts._DELAY_SECONDS)
    assert hook == []


def test_an_interrupt_in_a_callback_of_the_program_is_discarded_as_without_legroom(
    hook: list[object],
) -> None:
    free_with_interrupt("train")
    time.sleep(10 * interrupts._DELAY_SECONDS)
    assert len(hook) == 1


def test_the_hook_is_installed_once() -> None:
    installed = sys.unraisablehook
    deliver_interrupts()
    assert sys.unraisablehook is installed
