"""`legroom.record()`: results, nested recordings, and cleanup."""

import contextlib
import gc
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.data import dataloader

import legroom
from legroom.diagnose.report.run_report import report_from_capture
from legroom.errors import CaptureError, MissingExtra, UsageError
from legroom.memory.capture.reader import read_capture
from legroom.memory.events import Alloc
from legroom.run.record import BlockRecording
from legroom.units import MiB

_optimizers = sys.modules["torch.optim.optimizer"]


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, device: str = "cpu") -> None:
    for _ in range(steps):
        batch = torch.randn(64, 256, device=device)
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture(scope="module")
def on_cpu() -> BlockRecording:
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters())
    with legroom.record() as recording:
        train(model, optimizer, 3)
    return recording


@pytest.fixture(scope="module")
def on_virtual_gpu() -> BlockRecording:
    with legroom.VirtualGPU("64MiB"):
        model = make_model().cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        train(model, optimizer, 2, "cuda")
        with legroom.record() as recording:
            train(model, optimizer, 3, "cuda")
    return recording


def parameters_of(model: nn.Module) -> int:
    return sum(each.nbytes for each in model.parameters())


def test_cpu_tensors_are_recorded_and_the_report_says_so(on_cpu: BlockRecording) -> None:
    assert on_cpu.device == "host memory"
    assert on_cpu.steps == 3
    assert on_cpu.seconds > 0
    text = str(on_cpu)
    assert text.startswith("Finished after 3 steps")
    assert "No GPU was found, so the recording contains CPU tensors (host memory)." in text


def test_the_model_that_existed_before_the_block_is_part_of_the_peak(on_cpu: BlockRecording) -> None:
    sizes = on_cpu.by_category()
    assert sizes["parameter"] == parameters_of(make_model())
    assert sum(sizes.values()) == on_cpu.peak == on_cpu.peak_reserved
    (row,) = [row for row in on_cpu.by_line() if row["category"] == "parameter"]
    assert (row["file"], row["line"]) == ("<before the recording>", None)


def test_tensors_that_existed_before_the_block_can_be_omitted(
    on_cpu: BlockRecording, on_virtual_gpu: BlockRecording
) -> None:
    for recording in (on_cpu, on_virtual_gpu):
        assert "parameter" in {row["category"] for row in recording.by_line("end")}
        assert "parameter" not in {row["category"] for row in recording.by_line("end", existing=False)}
        assert recording.by_line("peak", existing=False)


def test_lines_of_the_block_are_named(on_cpu: BlockRecording) -> None:
    rows = on_cpu.by_line()
    assert [row["bytes"] for row in rows] == sorted((row["bytes"] for row in rows), reverse=True)
    assert {row["file"] for row in rows} == {__file__, "<before the recording>"}
    states = [row for row in rows if row["category"] == "optimizer state"]
    assert states[0]["function"] == "train"


def test_the_memory_at_the_end_has_no_activations(on_cpu: BlockRecording) -> None:
    end = on_cpu.by_category(at="end")
    assert "activation" not in end
    assert end["optimizer state"] >= 2 * end["parameter"]
    with pytest.raises(UsageError, match="`at` must be 'peak' or 'end'"):
        on_cpu.by_category(at="start")  # type: ignore[arg-type]


def test_a_block_on_a_virtual_gpu_counts_its_own_time_and_steps(on_virtual_gpu: BlockRecording) -> None:
    assert on_virtual_gpu.device == "virtual GPU 0"
    assert on_virtual_gpu.steps == 3
    steps = [event.step for event in on_virtual_gpu.events if isinstance(event, Alloc)]
    assert min(steps) == 0
    assert max(steps) <= 3
    assert all(0 <= sample.time <= on_virtual_gpu.seconds + 0.1 for sample in on_virtual_gpu.timeline)


def test_the_model_on_the_virtual_gpu_keeps_its_line(on_virtual_gpu: BlockRecording) -> None:
    rows = on_virtual_gpu.by_line()
    (row,) = [row for row in rows if row["category"] == "parameter"]
    assert (row["file"], row["function"]) == (__file__, "on_virtual_gpu")
    assert on_virtual_gpu.peak_reserved >= on_virtual_gpu.peak >= row["bytes"]


def test_reserved_memory_agrees_with_torch() -> None:
    with legroom.VirtualGPU("64MiB"):
        kept = [torch.empty(MiB, dtype=torch.uint8, device="cuda") for _ in range(3)]
        with legroom.record() as recording:
            torch.cuda.reset_peak_memory_stats()
            kept.append(torch.empty(30 * MiB, dtype=torch.uint8, device="cuda"))
            expected = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    assert (recording.peak, recording.peak_reserved) == expected


def test_an_out_of_memory_error_is_propagated_after_the_report() -> None:
    held = []
    with legroom.VirtualGPU("32MiB"), pytest.raises(torch.OutOfMemoryError) as caught:
        with legroom.record() as recording:
            while True:
                held.append(torch.empty(4 * MiB, dtype=torch.uint8, device="cuda"))
    assert str(caught.value).startswith("CUDA out of memory.")
    oom = recording.oom
    assert oom is not None
    assert oom.ended_run
    assert oom.event.frame is not None
    assert oom.event.frame.file == __file__
    assert oom.holders[0].path.startswith("held (list")
    assert str(recording).startswith("Out of memory")
    assert recording.peak == len(held) * 4 * MiB


def test_a_caught_out_of_memory_error_is_reported() -> None:
    with legroom.VirtualGPU("32MiB"), legroom.record() as recording:
        with contextlib.suppress(torch.OutOfMemoryError):
            torch.empty(64 * MiB, dtype=torch.uint8, device="cuda")
    assert recording.oom is not None
    assert not recording.oom.ended_run
    assert "caught 1 out-of-memory error" in " ".join(str(recording).split())


def test_another_error_is_propagated_and_named() -> None:
    error = ValueError("wrong \x1b[31mvalue")
    with pytest.raises(ValueError, match="wrong") as caught:
        with legroom.record() as recording:
            raise error
    assert caught.value is error
    assert str(recording).startswith("Failed with ValueError")
    assert "\x1b" not in str(recording)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_interrupts_are_propagated(kind: type[BaseException]) -> None:
    with pytest.raises(kind), legroom.record() as recording:
        raise kind
    assert isinstance(str(recording), str)


def test_a_leak_is_found() -> None:
    losses = []
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with legroom.record() as recording:
        for _ in range(20):
            loss = model(torch.randn(8, 256)).square().mean()
            losses.append(loss)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    (leak,) = recording.leaks
    assert leak.name == "losses"
    assert "losses" in str(recording)


# --- the decorator


def test_a_decorated_function_has_its_last_recording() -> None:
    @legroom.record()
    def make(size: int) -> torch.Tensor:
        """Make a tensor."""
        return torch.empty(size, dtype=torch.uint8)

    assert make.__doc__ == "Make a tensor."
    with pytest.raises(UsageError, match="Nothing has been recorded yet"):
        _ = make.recording.peak  # type: ignore[attr-defined]
    tensors = [make(MiB)]
    first = make.recording.peak  # type: ignore[attr-defined]
    tensors.append(make(5 * MiB))
    second = make.recording.peak  # type: ignore[attr-defined]
    assert second - first == 5 * MiB


def test_the_decorator_works_without_parentheses_and_with_recursion() -> None:
    @legroom.record
    def make(depth: int) -> list[torch.Tensor]:
        return [torch.empty(MiB, dtype=torch.uint8), *(make(depth - 1) if depth else [])]

    assert len(make(2)) == 3
    lines = make.recording.by_line(at="end")  # type: ignore[attr-defined]
    assert sum(row["bytes"] for row in lines if row["function"] == "make") == 3 * MiB


def test_a_value_that_is_not_a_function_is_rejected() -> None:
    with pytest.raises(UsageError, match="record\\(\\) expects a function, not str"):
        legroom.record("8GiB")  # type: ignore[call-overload]


# --- inside other recordings


def test_recordings_can_be_nested() -> None:
    with legroom.record() as outer:
        first = torch.empty(2 * MiB, dtype=torch.uint8)
        with legroom.record() as inner:
            second = torch.empty(3 * MiB, dtype=torch.uint8)
        third = torch.empty(4 * MiB, dtype=torch.uint8)
    assert first.nbytes + second.nbytes + third.nbytes == 9 * MiB
    made = [sum(row["bytes"] for row in each.by_line() if row["file"] == __file__) for each in (outer, inner)]
    assert made == [9 * MiB, 5 * MiB]
    assert inner.device == outer.device == "host memory"


def test_recordings_can_end_in_any_order() -> None:
    with legroom.VirtualGPU("64MiB") as gpu:
        sink = gpu.recorder.allocations.sink
        first, second = legroom.record(), legroom.record()
        first.__enter__()
        second.__enter__()
        kept = [torch.empty(MiB, dtype=torch.uint8, device="cuda")]
        first.__exit__(None, None, None)
        kept.append(torch.empty(2 * MiB, dtype=torch.uint8, device="cuda"))
        second.__exit__(None, None, None)
        assert gpu.recorder.allocations.sink is sink
    assert (first.peak, second.peak) == (MiB, 3 * MiB)


def test_a_running_recording_cannot_start_again_and_has_no_results() -> None:
    with legroom.record() as recording:
        with pytest.raises(UsageError, match="already running"):
            recording.__enter__()
        with pytest.raises(UsageError, match="still running"):
            _ = recording.peak
        assert repr(recording) == "<legroom recording: running>"
    assert recording.peak >= 0


# --- files, tables and plots


def test_a_saved_recording_is_a_capture(on_virtual_gpu: BlockRecording, tmp_path: Path) -> None:
    path = on_virtual_gpu.save(tmp_path / "block.legroom")
    report = report_from_capture(read_capture(path), path=str(path))
    assert report.steps == 3
    assert report.device is not None
    assert report.device.peak_allocated == on_virtual_gpu.peak
    assert report.sources[__file__]
    assert [command.split()[:2] for command, _ in report.next_commands] == [["legroom", "report"]] * 2
    with pytest.raises(UsageError, match="already exists. Add `force=True`"):
        on_virtual_gpu.save(path)
    assert on_virtual_gpu.save(path, force=True) == path


def test_save_overwrites_only_captures(on_cpu: BlockRecording, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)")
    with pytest.raises(UsageError, match="never write a script"):
        on_cpu.save(script, force=True)
    assert script.read_text() == "print(1)"
    with pytest.raises(CaptureError, match="is not a directory"):
        on_cpu.save(tmp_path / "missing" / "x.legroom")


def test_the_dataframe_has_one_row_per_storage(on_cpu: BlockRecording) -> None:
    frame = on_cpu.to_dataframe()
    assert len(frame) == sum(isinstance(event, Alloc) for event in on_cpu.events)
    assert set(frame[frame.category == "parameter"].bytes) == {
        each.nbytes for each in make_model().parameters()
    }
    assert frame[frame.category == "activation"].freed_seconds.notna().all()


@pytest.mark.parametrize(("package", "use"), [("matplotlib", "plot"), ("pandas", "to_dataframe")])
def test_a_missing_package_is_named(
    on_cpu: BlockRecording, monkeypatch: pytest.MonkeyPatch, package: str, use: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=f"{package} is not installed: pip install"):
        getattr(on_cpu, use)()


@pytest.mark.slow
def test_the_plot_shows_categories_and_the_capacity(on_virtual_gpu: BlockRecording) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    axes = on_virtual_gpu.plot()
    labels = axes.get_legend_handles_labels()[1]
    assert {"parameter", "optimizer state"} <= set(labels)
    assert axes.get_title() == "Memory of virtual GPU 0"
    assert on_virtual_gpu.plot(axes) is axes


def test_the_html_has_a_drawing_and_no_script(on_virtual_gpu: BlockRecording) -> None:
    html = on_virtual_gpu._repr_html_()
    assert html is not None
    assert html.count("<svg") == 2
    assert "<script" not in html
    assert "<style" not in html
    assert "Finished after 3 steps" in html


# --- what a recording leaves behind


def _patched() -> dict[str, Any]:
    hooks = nn.modules.module
    return {
        "modes": len(_get_current_dispatch_mode_stack()),
        "compile": torch.compile,
        "next": dataloader._BaseDataLoaderIter.__next__,
        "backward": torch.autograd.backward,
        "tensor": torch.Tensor.backward,
        "grad": torch.autograd.grad,
        "train": nn.Module.train,
        "pre": len(hooks._global_forward_pre_hooks),
        "post": len(hooks._global_forward_hooks),
        "parameters": len(hooks._global_parameter_registration_hooks),
        "buffers": len(hooks._global_buffer_registration_hooks),
        "before step": len(_optimizers._global_optimizer_pre_hooks),
        "after step": len(_optimizers._global_optimizer_post_hooks),
    }


@pytest.mark.parametrize("gpu", [None, "64MiB"])
def test_replaced_functions_are_restored(gpu: str | None) -> None:
    before = _patched()
    during = {}

    def block() -> None:
        with pytest.raises(ValueError, match="end"), legroom.record():
            model = make_model()
            train(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
            during.update(_patched())
            raise ValueError("end")

    if gpu is None:
        block()
    else:
        legroom.VirtualGPU(gpu)(block)()
    assert _patched() == before
    assert during != before


def test_many_recordings_do_not_use_more_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    def block() -> None:
        with legroom.record() as recording:
            torch.empty(1000).add(1)
        assert recording.peak >= 4000

    for _ in range(10):
        block()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(60):
        block()
    gc.collect()
    assert sys.getallocatedblocks() - before < 60 * 5  # less than five small objects per recording
    assert os.listdir(tmp_path) == []


def test_a_recording_keeps_no_tensor_alive() -> None:
    import weakref

    with pytest.raises(RuntimeError, match="size"), legroom.record() as recording:
        tensor = torch.empty(1000)
        reference = weakref.ref(tensor)
        torch.ones(3) @ torch.ones(4)
        raise AssertionError
    del tensor
    gc.collect()
    assert reference() is None
    assert recording.peak > 0
