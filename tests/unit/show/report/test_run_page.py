"""The page of a run: complete, self-contained and safe to open."""

import json
import re
import zlib
from array import array
from base64 import b64decode

import pytest
from example_events import events
from hypothesis import given, settings
from hypothesis import strategies as st

from example_runs import TRAIN, Run
from legroom.diagnose.report.run_figures import figures_from_capture
from legroom.memory.compare import compare_captures
from legroom.memory.detected_leak import DetectedLeak
from legroom.memory.event_base import Category, Frame, Phase
from legroom.memory.events import Alloc, Event, Oom
from legroom.show.report.html_diff.page_writer import page as diff_page
from legroom.show.report.html_report import page_writer
from legroom.show.report.html_report.page_writer import page
from legroom.units import MiB


def out_of_memory() -> Run:
    run = Run(capacity=1000)
    run.alloc(100, Category.PARAMETER, line=3, module="net.0")
    for _ in range(6):
        activation = run.alloc(200, Category.ACTIVATION, line=7, module="net.1")
        run.phase = Phase.BACKWARD
        gradient = run.alloc(100, Category.GRADIENT, line=8)
        run.free(activation, gradient)
        run.phase = Phase.FORWARD
        run.end_step()
    run.alloc(500, Category.ACTIVATION, line=7, module="net.1")
    run.oom(600, fragmented=50)
    run.holder("losses (list, 12 items)", 300)
    run.ends(1, "raised", "torch.OutOfMemoryError: CUDA out of memory.", "")
    run.source({7: "x = self.net(x)  # <b>"})
    return run


def page_of(run: Run, **options: bool) -> str:
    return page(figures_from_capture(run.capture(), path="run.legroom"), **options)


def embedded(text: str) -> dict:
    found = re.search(r'<script type="application/json" id="run">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found.group(1))


def unpacked(text: str, kind: str) -> list:
    return list(array(kind, zlib.decompress(b64decode(text))))


def test_the_first_sentence_is_the_verdict() -> None:
    text = page_of(out_of_memory())
    assert (
        "Out of memory at step 6 in the forward pass, at /project/train.py:20. Tried to allocate 600.0 MiB"
        in text
    )
    healthy = Run()
    healthy.alloc(8)
    healthy.ends(0, "finished")
    assert "Finished in 12 s. Peak memory: 8.0 MiB allocated (8.0 MiB reserved) of 1000.0 MiB" in page_of(
        healthy
    )


def test_the_bar_adds_up_to_the_total_of_the_device() -> None:
    text = page_of(out_of_memory())
    assert sum(map(int, re.findall(r"flex-grow:(\d+)", text))) == 1000 * MiB
    assert "fragmented" in text


def test_the_timeline_and_the_moments_contain_the_peak() -> None:
    data = embedded(page_of(out_of_memory()))
    (level,) = data["levels"]
    sums = unpacked(level["sums"], "I")
    columns = [sum(sums[position :: level["size"]]) * 512 for position in range(level["size"])]
    assert max(columns) == 600 * MiB
    main = data["moments"][data["main"]]
    assert main["label"] == "out of memory"
    assert len(unpacked(data["live"]["sizes"], "I")) == sum(moment["size"] for moment in data["moments"])
    assert {moment["step"] for moment in data["moments"]} == set(range(7))
    assert [mark["kind"] for mark in data["marks"]] == ["oom"]


def test_the_moment_of_the_failure_has_the_phase_of_the_first_sentence() -> None:
    run = out_of_memory()
    for position, event in enumerate(run.events):
        if isinstance(event, Oom):  # the last allocation was in the forward pass
            run.events[position] = event._replace(phase=Phase.OPTIMIZER)
    text = page_of(run)
    assert "Out of memory at step 6 in the optimizer step" in text
    data = embedded(text)
    main = data["moments"][data["main"]]
    assert data["phaseNames"][main["phase"]] == "in the optimizer step"


def test_a_pass_after_the_last_step_is_an_unfinished_step() -> None:
    run = Run()
    run.alloc(8)
    run.end_step()
    run.free(run.alloc(8))
    run.end_step()
    assert not embedded(page_of(run))["steps"]["unfinished"]
    run.alloc(8)
    assert embedded(page_of(run))["steps"]["unfinished"]
    assert embedded(page_of(out_of_memory()))["steps"]["unfinished"]


def test_the_moment_of_the_peak_has_the_phase_of_the_first_sentence() -> None:
    run = Run()
    run.alloc(8, Category.PARAMETER)
    run.alloc(8, Category.ACTIVATION)
    run.phase = Phase.OTHER
    run.alloc(9)
    run.ends(0, "finished")
    text = page_of(run)
    assert "at step 0 between the forward and the backward pass" in text
    data = embedded(text)
    main = data["moments"][data["main"]]
    assert data["phaseNames"][main["phase"]] == "between the forward and the backward pass"


def test_findings_leaks_variables_and_steps_are_listed() -> None:
    run = out_of_memory()
    leak = DetectedLeak(
        time=0.5, kind="graph", how="container", name="losses", described="list, 412 items", file=TRAIN, line=7,
        function="train", bytes_per_step=MiB, nodes_per_step=3, storages_per_step=1, step=5, steps=5,
    )  # fmt: skip
    run.events.append(leak)
    text = page_of(run)
    assert "<li>train.py:7 losses (list, 412 items)</li><li>tensor</li><li>graph of 3 nodes</li>" in text
    assert '<span class="code">LG101</span>' in text
    assert "<h2>What it detects</h2>" in text, "the page of the code is included"
    assert '<p class="fix"><a href="#findings">' in text
    for section in set(re.findall(r'<a href="#([\w-]+)">', text)):
        assert re.search(rf'<section id="?{section}\b', text)
    assert "losses (list, 12 items)" in text
    assert text.count("<tr data-time=") == 6
    assert [mark["kind"] for mark in embedded(text)["marks"]] == ["oom", "leak"]


def test_source_lines_can_be_omitted() -> None:
    assert "self.net" in page_of(out_of_memory())
    assert "self.net" not in page_of(out_of_memory(), with_source=False)


def test_the_page_loads_nothing_from_the_network() -> None:
    text = page_of(out_of_memory())
    assert not re.search(r"https?://", text)
    assert not re.search(r"<(link|img|iframe)|@import|url\(|\bfetch\(|XMLHttpRequest", text)
    assert "default-src 'none'" in text


def test_names_in_a_capture_cannot_inject_html_or_terminal_escapes() -> None:
    evil = "</script><script>alert(1)</script>\x1b]0;x\x07\u202e${x}$title"
    run = Run(arguments=[evil])
    run.events.append(
        Alloc(0.1, 1, MiB, MiB, 0, 0, Category.INPUT, Phase.OTHER, 0, evil, Frame(evil, 3, evil), evil)
    )
    run.oom(9999, op=evil)
    run.holder(evil, 1)
    run.ends(1, "raised", f"torch.OutOfMemoryError: {evil}", evil)
    run.events.append(
        DetectedLeak(
            kind="graph",
            how="container",
            name=evil,
            described=evil,
            file=evil,
            line=1,
            function=evil,
            bytes_per_step=1,
            nodes_per_step=1,
            storages_per_step=1,
            step=0,
            steps=5,
        )
    )
    text = page_of(run)
    assert "<script>alert" not in text
    assert text.count("</script>") == 2
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)
    data = text.partition('id="run">')[2].partition("</script>")[0]
    assert "\\u001b" not in data
    assert "\\u202e" not in data


def test_a_run_that_is_still_recorded_is_described_as_such() -> None:
    run = Run()
    run.alloc(8)
    text = page(figures_from_capture(run.capture(truncated=True)))
    assert (
        "The capture ends early: the file was cut off, or the process was killed or is still running." in text
    )


def test_a_run_without_memory_has_no_charts() -> None:
    run = Run()
    run.ends(0, "finished")
    text = page_of(run)
    assert "No GPU memory was used." in text
    assert embedded(text) == {}
    assert '<section id="timeline-section" hidden>' in text


def test_names_cannot_inject_html_into_a_comparison() -> None:
    evil = "<script>alert(1)</script>\x1b[31m"
    runs = [Run(), Run()]
    for number, run in enumerate(runs):
        run.alloc(8 + number, module=evil)
        run.events.append(
            Alloc(
                0.1,
                99,
                number,
                number,
                0,
                0,
                Category.INPUT,
                Phase.OTHER,
                0,
                evil,
                Frame(evil, 3, evil),
                evil,
            )
        )
        run.end_step()
        run.end_step()
    difference = compare_captures(runs[0].capture(), runs[1].capture())
    text = diff_page(difference, (runs[0].report(), runs[1].report()), names=(evil, evil))
    assert "<script>alert" not in text
    assert "\x1b" not in text
    assert text.count("<polyline") == 2
    assert "+1.0 MiB" in text


@settings(max_examples=40)
@given(st.lists(events, max_size=25))
def test_any_capture_makes_a_page(stream: list[Event]) -> None:
    run = Run()
    run.events = stream
    text = page_of(run)
    assert text.count("</script>") == 2
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text)


def test_many_small_blocks_are_merged_in_the_allocator_map(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_writer, "MAX_BLOCKS", 10)
    run = Run()
    for _ in range(60):
        run.alloc(1)
    (segments,) = [embedded(page_of(run))["segments"]]
    assert sum(size for _, blocks in segments for size, _ in blocks) == 60 * MiB
    assert sum(len(blocks) for _, blocks in segments) <= 31


def test_another_device_can_be_shown() -> None:
    run = out_of_memory()
    run.events.insert(0, Alloc(0.0, 999, MiB, MiB, 1, 0, Category.INPUT, Phase.OTHER, 0, "", None, ""))
    capture = run.capture()
    capture.run["devices"].append({"index": 1, "name": "", "kind": "virtual", "capacity": 64 * MiB})
    first = figures_from_capture(capture)
    assert first.report.device is not None
    assert (first.report.device.index, first.report.failed_with_oom) == (0, True)
    second = figures_from_capture(capture, chosen_device=1)
    assert second.report.device is not None
    assert (second.report.device.index, second.report.oom, second.report.oom_count) == (1, None, 0)
    assert second.report.peak is not None
    assert second.report.peak.allocated == MiB
    assert len(second.moments) == 1
