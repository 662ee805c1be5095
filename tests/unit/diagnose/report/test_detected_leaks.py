"""Leaks from the detector: the holder path, the code and the advice."""

from dataclasses import replace
from typing import Any

import pytest

from legroom.diagnose.report.leaks import advice_on, holder_path, latest_leaks, leaks_from
from legroom.memory.annotations import LoopWatched
from legroom.memory.detected_leak import DetectedLeak
from legroom.show.report.run_report import format_place
from legroom.units import MiB

LOSSES = DetectedLeak(
    kind="graph", how="container", name="losses", described="list, 412 items", file="/home/u/train.py", line=41,
    function="train", bytes_per_step=MiB + MiB // 5, nodes_per_step=37, storages_per_step=0, step=9, steps=5,
)  # fmt: skip


def test_holder_path_is_shown() -> None:
    expected = "train.py:41 losses (list, 412 items) → tensor → graph of 37 nodes → 1.2 MiB per step"
    assert holder_path(LOSSES) == expected


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, "LG101"), ({"evaluation": True}, "LG201"), ({"how": "carried"}, "LG104"), ({"how": "cache"}, "LG111"),
        ({"how": "exception"}, "LG107"), ({"how": "cycle", "kind": "tensor"}, "LG121"), ({"kind": "larger"}, "LG120"),
        ({"kind": "tensor"}, "LG105"), ({"how": "hook"}, "LG110"),
    ],
)  # fmt: skip
def test_each_cause_has_its_code(changes: dict[str, Any], code: str) -> None:
    assert advice_on(replace(LOSSES, **changes))[0] == code


@pytest.mark.parametrize(
    ("how", "advice"),
    [
        ("hook", "`handle.remove()`"),
        ("thread", "Stop the old thread"),
        ("linked", "Set the attribute to None"),
    ],
)
def test_the_advice_for_a_growing_number_of_objects_does_not_suggest_a_limited_container(
    how: str, advice: str
) -> None:
    text = advice_on(replace(LOSSES, how=how, kind="tensor"))[1]  # type: ignore[arg-type]
    assert advice in text
    assert "maxlen" not in text


def test_all_tensors_of_a_carried_container_are_detached() -> None:
    text = advice_on(replace(LOSSES, how="carried", name='self.fisher["conv1.weight"]'))[1]
    assert text.endswith("replace each tensor in `self.fisher` by `tensor.detach()`.")


def test_last_report_of_a_leak_is_used() -> None:
    later = replace(LOSSES, described="list, 900 items", step=40)
    assert latest_leaks([LOSSES, later]) == [later]


def test_growth_is_counted_to_the_end_of_the_run() -> None:
    (leak,) = leaks_from([LOSSES], [], steps=109, device=0)
    assert leak.steps == 105
    assert leak.bytes == 105 * LOSSES.bytes_per_step


def test_watched_run_without_detected_leaks_has_none(make_run) -> None:
    from legroom.memory.event_base import Category

    run = make_run()
    for _ in range(6):
        run.alloc(30, Category.ACTIVATION, line=11)
        run.end_step()
    run.events.append(LoopWatched(1.0, 6))
    assert run.report().leaks == ()


def test_report_contains_detected_leaks(make_run) -> None:
    run = make_run()
    run.end_step()
    run.events.append(LOSSES)
    (leak,) = run.report().leaks
    assert (leak.file, leak.line, leak.nodes_per_step) == ("/home/u/train.py", 41, 37)


def test_functions_that_each_step_compiles() -> None:
    detected = replace(
        LOSSES, kind="tensor", how="unknown", name="torch.jit.trace", described="compiled functions"
    )
    code, advice = advice_on(detected)
    assert code == "LG105"
    assert "Compile the function once" in advice


def test_the_call_and_the_storing_line_of_a_leak() -> None:
    detected = replace(
        LOSSES, line=60, stored_file=LOSSES.file, stored_line=41, caller_file=LOSSES.file, caller_line=60
    )
    (leak,) = leaks_from([detected], [], 9, 0)
    assert leak.is_at_call
    assert leak.holder == holder_path(LOSSES)
    shown = leak.as_dict()
    assert (shown["line"], shown["stored_at"]["line"], shown["called_from"]["line"]) == (60, 41, 60)
    assert format_place(leak) == "passed at /home/u/train.py:60, stored at /home/u/train.py:41"
    (leak,) = leaks_from([replace(detected, line=41)], [], 9, 0)
    assert format_place(leak) == "stored at /home/u/train.py:41, called from /home/u/train.py:60"
    assert detected.identity == LOSSES.identity
