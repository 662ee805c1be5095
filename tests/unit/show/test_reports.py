"""What people read, kept as text files in tests/snapshots: UPDATE_SNAPSHOTS=1 writes them anew."""

import os
from pathlib import Path

import pytest
from rich.console import RenderableType

from legroom.memory.annotations import RecordingFailed
from legroom.memory.events import Category, Phase
from legroom.show.common.terminal import render_to_string
from legroom.show.report.run_report import render_oom, render_report, render_run

SNAPSHOTS = Path(__file__).parents[2] / "snapshots"
CODE = {
    8: "def train(model, loader, optimizer):",
    9: "    for images, labels in loader:",
    10: "        images, labels = images.cuda(), labels.cuda()",
    11: "        loss = criterion(model(images), labels)",
    12: "        loss.backward()",
}


def agrees(name: str, *parts: RenderableType) -> None:
    text = render_to_string(*parts)
    file = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


@pytest.fixture
def trained(make_run):
    """Six steps of training, memory left."""
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


def test_a_run_that_ended_well(trained):
    trained.ends(0, "finished")
    agrees("finished", render_report(trained.report()))


def test_a_run_that_died_of_memory(trained):
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
    agrees("out_of_memory", render_report(trained.report()))


def test_a_run_that_leaks(make_run):
    run = make_run()
    run.source(CODE)
    for _ in range(9):
        run.alloc(30, Category.ACTIVATION, line=11)
        run.end_step()
    run.ends(0, "finished")
    agrees("leak", render_run(run.report()))


def test_a_run_that_put_nothing_on_the_device_is_asked_why(make_run):
    run = make_run()
    run.ends(0, "finished")
    assert "Was anything moved to the device?" in render_to_string(render_run(run.report()), width=80)


def test_a_run_that_was_interrupted_before_it_used_memory(make_run):
    run = make_run()
    run.ends(130, "interrupted", "KeyboardInterrupt at train.py:3")
    agrees("interrupted", render_report(run.report()))


def test_a_run_that_got_over_it(trained):
    trained.oom(900, line=11)
    trained.ends(0, "finished")
    agrees("caught", render_report(trained.report()))


def test_on_a_shared_device_with_a_limit(make_run):
    run = make_run(capacity=16000, other=3000)
    run.alloc(7000, Category.ACTIVATION, line=11)
    run.oom(1500, line=11, limit=8000, fragmented=700)
    run.ends(1, "raised", "torch.OutOfMemoryError: …")
    agrees("shared_device", render_oom(run.report()))


def test_the_bar_adds_up_to_the_device(make_run):
    run = make_run(capacity=16000, other=3000)
    run.alloc(7000, Category.ACTIVATION)
    run.oom(1500, limit=8000, fragmented=700)
    snapshot = run.report().oom.snapshot
    assert sum(share.bytes for share in snapshot.shares) == snapshot.capacity == run.capacity


def test_a_strangers_capture_cannot_command_the_terminal(make_run):
    run = make_run()
    run.source({11: "evil = '\x1b[2J'"})
    run.alloc(10, line=11, module="\x1b[31m")
    run.oom(2000, line=11, op="\x1b]0;x\x07")
    run.holder("\x1b[2J", 10)
    run.ends(1, "raised", "\x1b[2J: x", "\x1b[2J")
    assert "\x1b" not in render_to_string(render_report(run.report()))


def test_plain_ascii_where_the_stream_knows_no_more(trained):
    trained.oom(900, line=11)
    trained.ends(1, "raised")
    assert render_to_string(render_report(trained.report()), ascii_only=True).isascii()


def test_no_line_is_wider_than_the_terminal(trained):
    trained.ends(0, "finished")
    for width in (60, 80, 100):
        assert (
            max(
                len(line) for line in render_to_string(render_run(trained.report()), width=width).splitlines()
            )
            <= width
        )


def test_what_the_watcher_could_not_see_is_said(trained):
    trained.events.append(RecordingFailed(1.0, "watching the GPU ended early"))
    trained.ends(0, "finished")
    assert "Watching the GPU ended early.\n" in render_to_string(render_report(trained.report()))


def test_an_unknown_line_is_left_out_of_the_sentence(make_run):
    run = make_run()
    run.alloc(900)
    run.oom(200)
    run.events[-1] = run.events[-1]._replace(frame=None, op="")
    run.ends(1, "raised")
    first = render_to_string(render_oom(run.report())).splitlines()[0]
    assert first.startswith("Out of memory at step 0, in the forward pass: 200.0 MiB were asked for")


def test_variables_that_reach_the_same_share_a_row(make_run):
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
