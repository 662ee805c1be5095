"""Snapshots of the monitor as text and JSON: runs matched to processes, escaped text, and complete output at every
width."""

import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from example_snapshots import GPUS, NOW, PROCESSES, RUN, VIRTUAL, GiB, MiB, snapshot

from legroom.gpus.nvml import NA
from legroom.show.common.terminal import render_to_string
from legroom.show.monitor.history import History, sparkline
from legroom.show.monitor.panel import render_panel
from legroom.show.monitor.snapshot import Snapshot
from legroom.show.monitor.tables import (
    PROCESS_COLUMNS,
    RUN_COLUMNS,
    matching_processes,
    sort_rows,
    visible_columns,
)
from legroom.show.monitor.text import render_snapshot

SNAPSHOTS = Path(__file__).parents[3] / "snapshots"
HOSTILE = "\x1b]0;owned\x07<script>alert(1)</script>\x1b[2J\nsecond line"


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def text(shown: Snapshot, width: int = 80) -> str:
    return render_to_string(render_snapshot(shown, width=width), width=width)


@pytest.mark.parametrize("width", [80, 40])
def test_text_matches_the_snapshot(width: int) -> None:
    rendered = text(snapshot(), width)
    file = SNAPSHOTS / f"monitor_{width}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.write_text(rendered, encoding="utf-8")
    assert rendered == file.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [40, 41, 59, 60, 63, 64, 72, 80, 90, 100, 160])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(map(len, text(snapshot(), width).splitlines())) <= width
    for height in (3, 10, 100):
        panel = render_panel(snapshot(), History(), width, height=height).plain
        assert max(map(len, panel.splitlines())) <= width


def test_json_has_these_keys() -> None:
    document = json.loads(json.dumps(snapshot().as_json()))
    assert document["schema"] == "legroom.monitor/1"
    assert set(document) == {
        "schema", "time", "driver", "host", "gpus", "virtual_gpus", "runs", "processes",
    }  # fmt: skip
    assert set(document["gpus"][0]) == {
        "index", "name", "uuid", "is_mig", "memory_total_bytes", "memory_used_bytes", "memory_used_is_lower_bound",
        "utilization_percent", "memory_utilization_percent", "temperature_celsius", "power_watts", "power_limit_watts",
        "fan_percent",
    }  # fmt: skip
    assert set(document["processes"][0]) == {
        "gpu", "pid", "user", "name", "command", "gpu_memory_bytes", "gpu_memory_source", "gpu_utilization_percent",
        "cpu_percent", "memory_bytes", "started", "state", "parent", "threads", "is_run",
    }  # fmt: skip
    assert set(document["runs"][0]) == {
        "pid", "command_name", "script", "command", "folder", "rank", "world_size", "started", "updated",
        "silent_seconds", "step", "total_steps", "seconds_per_step", "allocated_bytes", "reserved_bytes",
        "trend_bytes_per_step", "finding", "advice", "devices", "history_allocated_bytes",
    }  # fmt: skip


def test_an_unavailable_value_is_null_in_json_and_never_zero() -> None:
    second = snapshot().as_json()["gpus"][1]
    assert (second["utilization_percent"], second["temperature_celsius"], second["power_watts"]) == (
        None,
    ) * 3
    hidden = next(each for each in snapshot().as_json()["processes"] if each["pid"] == 5002)
    assert (hidden["user"], hidden["command"], hidden["gpu_memory_bytes"]) == (None,) * 3


def test_escape_sequences_and_html_are_not_executed() -> None:
    hostile = replace(PROCESSES[4242], user=HOSTILE, name=HOSTILE, command=HOSTILE)
    run = replace(RUN, script=HOSTILE, command=HOSTILE, finding=HOSTILE, advice=HOSTILE)
    gpus = (replace(GPUS[0], name=HOSTILE),)
    shown = snapshot(gpus=gpus, runs=(run,), processes={**PROCESSES, 4242: hostile})
    rendered = text(shown, 160)
    assert "owned" in rendered  # the check below can fail
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", rendered)
    row = next(line for line in rendered.splitlines() if "4242" in line)
    assert "second line" in row or "…" in row
    assert "\x1b" not in json.dumps(shown.as_json(), ensure_ascii=False)


def test_a_run_that_the_driver_does_not_list_is_shown_on_its_gpu() -> None:
    """In a container, the driver lists no processes and may report that no memory is used."""
    shown = snapshot(gpus=(replace(GPUS[0], used=0, processes=()),), runs=(RUN,))
    (row,) = shown.processes
    assert (row.gpu, row.pid, row.memory, row.memory_source) == ("0", 4242, 60 * GiB, "run")
    assert shown.gpus[0].is_lower_bound
    assert "≥ 60.0 of 140.0 GiB" in text(shown)
    assert shown.as_json()["gpus"][0]["memory_used_is_lower_bound"] is True


def test_runs_are_matched_to_gpus_by_uuid() -> None:
    run = replace(RUN, devices=(replace(RUN.devices[0], index=0, uuid="GPU-b"),))
    shown = snapshot(runs=(run,), gpus=tuple(replace(gpu, processes=()) for gpu in GPUS))
    assert [row.gpu for row in shown.processes] == ["1"]


def test_without_gpus_the_host_and_virtual_gpus_are_shown() -> None:
    rendered = text(snapshot(gpus=(), runs=(VIRTUAL,)))
    assert "no GPU found" in rendered
    assert "Virtual GPU 0" in rendered
    assert "2.0 of 8.0 GiB" in rendered
    assert "small.py" in rendered


def test_an_empty_machine_is_described_as_such() -> None:
    assert "No process is using a GPU" in text(snapshot(gpus=(), runs=()))


def test_a_run_without_updates_is_silent() -> None:
    rendered = text(snapshot(runs=(replace(RUN, updated=NOW - 125),)))
    assert "silent" in rendered
    assert "No update for 2 min 05 s." in rendered
    assert snapshot(runs=(replace(RUN, updated=NOW - 125),)).as_json()["runs"][0]["silent_seconds"] == 125.0


def test_rows_without_a_value_come_last_in_both_directions() -> None:
    column = next(column for column in PROCESS_COLUMNS if column.name == "GPU memory")
    for reverse in (False, True):
        rows = sort_rows(snapshot().processes, column, reverse=reverse)
        assert rows[-1].memory is NA
    assert sort_rows(snapshot().processes, column)[0].pid == 4242


def test_a_filter_matches_every_word_in_any_case() -> None:
    rows = snapshot().processes
    assert [row.pid for row in matching_processes(rows, "SERVE grace")] == [5001]
    assert [row.pid for row in matching_processes(rows, "5002")] == [5002]
    assert matching_processes(rows, "serve ada") == []
    assert len(matching_processes(rows, "")) == len(rows)


@pytest.mark.parametrize("width", range(30, 200, 7))
def test_columns_fill_the_width(width: int) -> None:
    for columns in (PROCESS_COLUMNS, RUN_COLUMNS):
        shown = visible_columns(columns, width)
        assert sum(size for _, size in shown) + len(shown) - 1 == max(
            width, 36 if columns is RUN_COLUMNS else 30
        )


def test_history_is_limited_and_forgets_devices() -> None:
    history = History()
    for _ in range(300):
        history.add(snapshot())
    assert len(history.values("gpu0.memory")) == 120
    assert history.values("gpu1.utilization")[-1] is None
    history.add(snapshot(gpus=()))
    assert history.values("gpu0.memory") == []


@pytest.mark.parametrize(
    ("values", "expected"), [([], "    "), ([0, 50, None, 100], "▁▅ █"), ([0, 100, 100, 100, 0], "███▁")]
)
def test_sparkline_shows_the_history(values: list[float | None], expected: str) -> None:
    assert sparkline(values, 4) == expected


def test_growth_is_shown_per_step() -> None:
    assert "+1.2 MiB" in text(snapshot())
    assert "steady" in text(snapshot(runs=(replace(RUN, trend=0),)))
    assert "-1.0 MiB" in text(snapshot(runs=(replace(RUN, trend=-MiB),)))


def test_a_rank_is_shown_on_the_virtual_gpu_that_it_uses() -> None:
    unused = replace(VIRTUAL.devices[0], allocated=0, reserved=0)
    used = replace(VIRTUAL.devices[0], index=1)
    shown = snapshot(gpus=(), runs=(replace(VIRTUAL, rank=1, world_size=2, devices=(unused, used)),))
    assert [row.device.index for row in shown.virtual_gpus] == [1]
    assert [row.gpu for row in shown.processes] == ["v1"]
    assert "small.py 1/2" in text(shown)
