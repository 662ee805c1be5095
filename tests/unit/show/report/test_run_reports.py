"""Reports compared with tests/snapshots; UPDATE_SNAPSHOTS=1 accepts the new output."""

import os
import re
from pathlib import Path

import pytest
from rich.console import RenderableType

from legroom.diagnose.report.run_report import RunReport
from legroom.memory.annotations import EvaluatedWithGradients, RecordingFailed
from legroom.memory.event_base import Category, Phase
from legroom.show.common.terminal import render_to_string
from legroom.show.report.run_report import render_oom, render_report, render_run
from legroom.show.report.short_report import render_short_report
from legroom.units import MiB

SNAPSHOTS = Path(__file__).parents[3] / "snapshots"
CODE = {
    8: "def train(model, loader, optimizer):",
    9: "    for images, labels in loader:",
    10: "        images, labels = images.cuda(), labels.cuda()",
    11: "        loss = criterion(model(images), labels)",
    12: "        loss.backward()",
}


def check_snapshots(name: str, report: RunReport) -> None:
    """Compare the short report and the complete report with their snapshots."""
    check_snapshot(name, render_short_report(report))
    check_snapshot(f"{name}_verbose", render_report(report))


def check_snapshot(name: str, part: RenderableType) -> None:
    text = render_to_string(part)
    file = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


@pytest.fixture
def trained(make_run):
    """A run of six training steps that leaves memory free."""
    run = make_run(arguments=["--batch-size", "256"])
    run.source(CODE)
    run.phase = Phase.OTHER
    run.alloc(60, Category.PARAMETER, line=3)
    for _ in range(6):
        run.phase = Phase.FORWARD
        batch = [
            run.alloc(20, Category.INPUT),
            run.alloc(400 + 10 * run.step, Category.ACTIVATION, line=11, module="layer1"),
        ]
        run.phase = Phase.BACKWARD
        batch.append(run.alloc(60, Category.GRADIENT, line=11, module="layer1"))
        run.phase = Phase.OPTIMIZER
        if run.step == 0:
            run.alloc(120, Category.OPTIMIZER_STATE, line=13)
        run.free(*batch)
        run.end_step()
    return run


def test_report_of_a_finished_run_matches_the_snapshot(trained):
    trained.ends(0, "finished")
    check_snapshots("finished", trained.report())


def test_report_of_an_oom_matches_the_snapshot(trained, monkeypatch):
    trained.phase = Phase.FORWARD
    trained.alloc(20, Category.INPUT)
    trained.alloc(700, Category.ACTIVATION, line=11, module="layer1")
    trained.oom(150, line=11, op="aten.convolution")
    trained.holder("images (Tensor)", 20)
    trained.holder("loss (Tensor)", 700)
    traceback = (
        'Traceback (most recent call last):\n  File "/project/train.py", line 30, in <module>\n    train()\n'
        "  … 7 frames in torch\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 150.00 MiB.\n"
    )
    trained.ends(
        1, "raised", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 150.00 MiB.", traceback
    )
    check_snapshots("out_of_memory", trained.report())
    monkeypatch.setenv("LEGROOM_LANG", "ko")
    check_snapshot("out_of_memory_korean", render_short_report(trained.report()))
    check_snapshot("out_of_memory_verbose", render_report(trained.report()))  # English


def test_report_of_a_leak_matches_the_snapshot(make_run):
    run = make_run()
    run.source(CODE)
    for _ in range(9):
        run.alloc(30, Category.ACTIVATION, line=11)
        run.end_step()
    run.ends(0, "finished")
    check_snapshots("leak", run.report())


def test_run_without_gpu_memory_gets_a_hint(make_run):
    run = make_run()
    run.ends(0, "finished")
    assert "Check that the script moves the model and the data to the GPU" in render_to_string(
        render_run(run.report()), width=80
    )


def test_report_of_an_interrupted_run_without_gpu_memory(make_run):
    run = make_run()
    run.ends(130, "interrupted", "KeyboardInterrupt at train.py:3")
    check_snapshots("interrupted", run.report())


def test_report_of_a_run_that_caught_an_oom(trained):
    trained.oom(900, line=11)
    trained.ends(0, "finished")
    check_snapshots("caught", trained.report())


def test_report_of_an_oom_on_a_shared_device_with_a_memory_fraction(make_run):
    run = make_run(capacity=16000, other=3000)
    run.alloc(7000, Category.ACTIVATION, line=11)
    run.oom(1500, line=11, limit=8000, fragmented=700)
    run.ends(1, "raised", "torch.OutOfMemoryError: …")
    check_snapshots("shared_device", run.report())


@pytest.mark.parametrize(("limit", "usable"), [(8000, 8000), (14000, 16000)])
def test_shares_add_up_to_the_usable_memory(make_run, limit, usable):
    run = make_run(capacity=16000, other=3000)
    run.alloc(7000, Category.ACTIVATION)
    run.oom(8000, limit=limit, fragmented=700)
    snapshot = run.report().oom.snapshot
    assert sum(share.bytes for share in snapshot.shares) == snapshot.capacity == usable * MiB


def test_control_characters_in_a_capture_are_removed(make_run):
    run = make_run()
    run.source({11: "evil = '\x1b[2J'"})
    run.alloc(10, line=11, module="\x1b[31m")
    run.oom(2000, line=11, op="\x1b]0;x\x07")
    run.holder("\x1b[2J", 10)
    run.ends(1, "raised", "\x1b[2J: x", "\x1b[2J")
    assert "\x1b" not in render_to_string(render_report(run.report()))


def test_ascii_output_contains_only_ascii(trained):
    trained.oom(900, line=11)
    trained.ends(1, "raised")
    assert render_to_string(render_report(trained.report()), ascii_only=True).isascii()


def test_lines_fit_the_terminal(trained):
    trained.ends(0, "finished")
    for width in (60, 80, 100):
        assert (
            max(
                len(line) for line in render_to_string(render_run(trained.report()), width=width).splitlines()
            )
            <= width
        )


def test_failed_recording_is_reported(trained):
    trained.events.append(RecordingFailed(1.0, "watching the GPU ended early"))
    trained.ends(0, "finished")
    assert "Watching the GPU ended early.\n" in render_to_string(render_report(trained.report()))


def test_unknown_line_is_omitted_from_the_summary(make_run):
    run = make_run()
    run.alloc(900)
    run.oom(200)
    run.events[-1] = run.events[-1]._replace(frame=None, op="")
    run.ends(1, "raised")
    first = render_to_string(render_oom(run.report())).splitlines()[0]
    assert first.startswith("Out of memory at step 0 in the forward pass. Tried to allocate 200.0 MiB")


def test_requested_size_is_that_of_pytorchs_message(make_run):
    run = make_run()
    run.alloc(1023)
    run.oom(1)
    message = "CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 1.00 GiB"
    run.events[-1] = run.events[-1]._replace(message=message)
    run.ends(1, "raised", f"torch.OutOfMemoryError: {message}")
    report = run.report()
    summary = " ".join(render_to_string(render_oom(report)).split())
    assert "Tried to allocate 2.0 MiB for a request of 1.0 MiB; " in summary
    oom = report.as_json()["oom"]
    assert (oom["requested_bytes"], oom["block_bytes"]) == (1 << 20, 2 << 20)


def test_variables_that_retain_the_same_memory_share_an_entry(make_run):
    run = make_run()
    run.alloc(900)
    run.oom(200)
    for name in ("x", "images", "batch"):
        run.holder(f"{name} (Tensor)", 900)
    run.holder("model (Net)", 900)
    run.ends(1, "raised", "torch.OutOfMemoryError: CUDA out of memory.")
    text = render_to_string(render_oom(run.report()))
    assert "x, images, batch (Tensor)" in text
    assert "900.0 MiB model (Net)" in text


def test_all_suggested_changes_are_listed(make_run):
    run = make_run(capacity=16000, other=3000)
    run.alloc(7000, Category.ACTIVATION, line=11)
    run.oom(1500, line=11, limit=8000, fragmented=700)
    run.ends(1, "raised", "torch.OutOfMemoryError: CUDA out of memory.")
    report = run.report()
    assert report.oom is not None
    codes = [finding.code for finding in report.oom.advice]
    assert len(codes) > 4
    text = render_to_string(render_oom(report))
    assert [line.split()[1] for line in text.splitlines() if re.match(r" +\d+\. LG", line)] == codes
    assert f"(1 of {len(codes)})" in render_to_string(render_short_report(report))


def test_peak_in_an_evaluation_with_gradients_is_named(make_run):
    run = make_run()
    run.alloc(60, Category.PARAMETER)
    run.end_step()
    run.phase = Phase.FORWARD
    run.alloc(500, Category.ACTIVATION, line=11)
    run.events.append(EvaluatedWithGradients(1.0, "/project/train.py", 21, "test", (1,)))
    run.ends(0, "finished")
    report = run.report()
    text = " ".join(render_to_string(render_run(report)).split())
    assert "in the evaluation after 1 step, which runs with gradients enabled (LG201, " in text
    assert report.as_json()["peak_in_evaluation"] == {
        "file": "/project/train.py",
        "line": 21,
        "code": "LG201",
    }
