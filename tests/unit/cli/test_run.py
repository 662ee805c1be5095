"""`legroom run`: output, capture and exit code."""

import errno
import json
import os
import textwrap

import pytest

from legroom.cli import main
from legroom.gpus.catalog import find_gpu
from legroom.memory.annotations import RunEnded
from legroom.memory.capture.capture import read_capture
from legroom.memory.capture.chunks import ChunkFile
from legroom.units import MiB

TRAINS = """
import torch
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    optimizer.zero_grad()
    model(torch.randn(64, 256, device="cuda")).sum().backward()
    optimizer.step()
"""
FAILS = TRAINS + "big = torch.zeros(64 << 20, device='cuda')\n"


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    """Runs the source of a script, and returns the exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(source: str, *options: str, arguments: tuple[str, ...] = ()) -> tuple[int, str, str]:
        (tmp_path / "train.py").write_text(textwrap.dedent(source))
        code = main(["run", *options, "train.py", *arguments])
        out, err = capfd.readouterr()
        return code, out, err

    return run


@pytest.mark.slow
def test_a_run_ends_with_its_peak_and_the_next_command(run):
    code, _, err = run(TRAINS, "--gpu", "64MiB")
    assert code == 0
    assert "Finished after 6 steps (" in err
    assert "Peak memory: " in err
    shown = " ".join(err.split())
    assert "of 64.0 MiB at step" in shown
    assert "from train.py:" in shown
    assert err.rstrip().endswith("legroom report train.legroom --html train.html   # a web page with charts")


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--gpu", "64MiB")])
def test_a_recording_inside_a_run_has_its_own_steps_and_the_run_continues(run, options):
    recorded = TRAINS.replace("import torch", "import torch, legroom").replace(
        "for _", "def train():\n  for _", 1
    )
    source = (
        recorded.replace("\n    ", "\n        ")
        + "train()\nwith legroom.record() as block: train()\ntrain()\n"
    )
    if not options:
        source = source.replace(".cuda()", "").replace(', device="cuda"', "")
    code, out, err = run(source + "print(block.steps, block.device, block.peak > 0)\n", *options)
    assert (code, out) == (0, f"6 {'virtual GPU 0' if options else 'host memory'} True\n")
    assert "Finished after 18 steps (" in err


def test_a_syntax_error_is_reported_as_by_python_and_leaves_no_capture(run, tmp_path):
    code, out, err = run("import torch\nx = (1,\n")
    assert (code, out) == (1, "")
    assert err.startswith('  File "')
    assert err.endswith("SyntaxError: '(' was never closed\n")
    assert "legroom" not in err.replace(str(tmp_path), "")
    assert not list(tmp_path.glob("*.legroom"))


def test_a_failure_before_any_tensor_has_no_report_and_no_capture(run, tmp_path):
    code, _, err = run("import no_such_module_here", "--gpu", "64MiB")
    assert code == 1
    assert "ModuleNotFoundError" in err
    assert "memory was used" not in err
    assert "Next:" not in err
    code, out, _ = run("raise SystemExit(3)", "--gpu", "64MiB", "--format", "json")
    assert (code, json.loads(out)["capture"]) == (3, None)
    assert not list(tmp_path.glob("*.legroom"))


def test_a_script_is_rejected_as_the_path_of_the_capture(run):
    code, _, err = run("x = 1", "-o", "train.py")
    assert code == 2
    assert err == (
        "legroom: train.py is a script, and Legroom will never write a script. Specify another path, for example "
        "`-o train.legroom`.\n"
    )


def test_the_report_does_not_go_to_stdout(run):
    _, out, _ = run("print('hello')", "--gpu", "64MiB")
    assert out == "hello\n"


@pytest.mark.slow
def test_the_report_of_the_capture_is_the_same(run, capfd):
    _, _, err = run(TRAINS, "--gpu", "64MiB")
    assert main(["report", "train.legroom"]) == 0
    shown = capfd.readouterr().out.strip()
    assert shown in err


@pytest.mark.slow
def test_the_report_of_a_failure_is_the_same_from_its_capture(run, capfd):
    _, out, _ = run(FAILS, "--gpu", "64MiB", "--format", "json")
    assert main(["report", "train.legroom", "--format", "json"]) == 0
    again = json.loads(capfd.readouterr().out)
    assert json.loads(out) == again
    assert again["oom"]["advice"]


def test_arguments_after_the_script_belong_to_the_script(run):
    words = ("--gpu", "x", "--help", "-m", "--", "-o")
    _, out, _ = run("import sys; print(sys.argv[1:])", "--gpu", "64MiB", arguments=words)
    assert out == f"{list(words)}\n"


def test_the_exit_code_is_that_of_the_script(run):
    code, _, err = run("import sys; sys.exit(3)", "--gpu", "64MiB")
    assert code == 3
    assert "Exited with code 3" in err


@pytest.mark.slow
def test_an_oom_is_reported_above_the_traceback(run):
    code, _, err = run(FAILS, "--gpu", "64MiB")
    assert code == 1
    explained, traceback = err.split("Traceback (most recent call last):")
    assert (
        "Out of memory at step 6 outside forward and backward, at train.py:9. Tried to allocate 256.0 MiB"
        in " ".join(explained.split())
    )
    assert "Suggested change  LG601" in explained
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 256.00 MiB." in traceback


@pytest.mark.slow
def test_the_traceback_shows_only_user_frames(run):
    _, _, err = run(FAILS, "--gpu", "64MiB")
    assert "site-packages" not in err
    assert "legroom/observe" not in err


@pytest.mark.slow
def test_an_oom_is_reported_once(run):
    _, _, err = run(FAILS, "--gpu", "64MiB")
    assert err.count("Out of memory at") == 1


@pytest.mark.slow
def test_an_oom_that_causes_another_error_is_reported(run):
    source = (
        FAILS.replace("big =", "try:\n    big =")
        + "except RuntimeError as error:\n    raise ValueError('wrapped') from error\n"
    )
    code, _, err = run(source, "--gpu", "64MiB")
    assert code == 1
    assert "Out of memory at step 6" in err
    assert "ValueError: wrapped" in err


@pytest.mark.slow
def test_a_handled_oom_is_mentioned(run):
    source = (
        FAILS.replace("big =", "try:\n    big =") + "except torch.OutOfMemoryError:\n    print('smaller')\n"
    )
    code, out, err = run(source, "--gpu", "64MiB")
    assert (code, out) == (0, "smaller\n")
    assert "Finished after 6 steps" in err
    assert "The script caught 1 out-of-memory error at step 6, at train.py:" in " ".join(err.split())


@pytest.mark.slow
def test_an_exit_after_an_oom_is_reported(run):
    source = (
        FAILS.replace("big =", "try:\n    big =")
        + "except torch.OutOfMemoryError:\n    raise SystemExit(4)\n"
    )
    code, _, err = run(source, "--gpu", "64MiB")
    assert code == 4
    assert "Out of memory at step 6" in err


def test_other_errors_keep_library_frames(run):
    code, _, err = run("import json\njson.loads('{')", "--gpu", "64MiB")
    assert code == 1
    assert "json/decoder.py" in err
    assert "json.decoder.JSONDecodeError: " in err


def test_the_excepthook_of_the_script_prints_the_error(run, monkeypatch):
    import sys

    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    _, out, err = run("import sys\nsys.excepthook = lambda *a: print('mine')\n1 / 0", "--gpu", "64MiB")
    assert out == "mine\n"
    assert "Traceback" not in err


def test_a_run_that_uses_no_gpu_memory_says_so(run):
    _, _, err = run("print(1)", "--gpu", "64MiB")
    assert "No GPU memory was used." in err


def test_without_a_gpu_host_memory_is_recorded(run):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    code, _, err = run(
        "import torch\nx = torch.zeros(1 << 20)",
    )
    assert code == 0
    assert "No GPU found. Host memory: " in err
    assert "Peak memory: 4.0 MiB" in err


def test_the_context_of_a_gpu_by_name_is_part_of_the_report(run):
    source = "import torch; x = torch.zeros(1 << 20, device='cuda'); print(torch.cuda.mem_get_info())"
    _, out, err = run(source, "--gpu", "t4")
    t4 = find_gpu("t4")
    assert out == f"({t4.usable - 20 * MiB}, {t4.total})\n"
    assert "non-PyTorch 400.0 MiB" in " ".join(err.split())


def test_an_unknown_gpu_is_rejected_with_similar_names(run):
    code, _, err = run("print()", "--gpu", "rtx4099")
    assert code == 2
    assert "`rtx4099` is not a valid GPU." in err
    assert "`rtx4090`" in err


def test_several_virtual_gpus_are_reported(run):
    source = (
        "import torch\na = torch.zeros(1 << 20, device='cuda:0')\nb = torch.zeros(3 << 20, device='cuda:1')"
    )
    _, _, err = run(source, "--gpu", "64MiB,32MiB")
    assert "virtual GPU 1, 32.0 MiB" in err
    assert "Peaks of other devices  virtual GPU 0 4.0 MiB of 64.0 MiB" in err


def test_verbose_prints_the_complete_report(run):
    source = "import torch\na = torch.zeros(1 << 20, device='cuda')\nb = torch.zeros(64 << 20, device='cuda')"
    _, _, short = run(source, "--gpu", "64MiB")
    assert "Memory by variable" not in short
    _, _, err = run(source, "--verbose", "--gpu", "64MiB")
    assert "❱ 3 │ b = torch.zeros(64 << 20, device='cuda')" in err
    assert "Memory by variable" in err
    assert "Suggested changes  most useful first" in err


@pytest.mark.slow
def test_growth_is_reported(run):
    source = TRAINS.replace("for _ in range(6):", "kept = []\nfor _ in range(9):").replace(
        "    optimizer.step()", "    optimizer.step()\n    kept.append(torch.zeros(1 << 18, device='cuda'))"
    )
    _, _, err = run(source, "--gpu", "64MiB")
    assert "Memory grows by 1.0 MiB per step." in " ".join(err.split())
    assert "LG105" in err
    assert "kept (list, " in err


def test_captures_are_numbered_and_never_overwritten(run, tmp_path):
    for _ in range(3):
        run("print()", "--gpu", "64MiB")
    assert sorted(path.name for path in tmp_path.glob("*.legroom")) == [
        "train-2.legroom",
        "train-3.legroom",
        "train.legroom",
    ]


def test_an_existing_capture_is_not_overwritten(run, tmp_path):
    run("print()", "--gpu", "64MiB", "-o", "x.legroom")
    before = (tmp_path / "x.legroom").read_bytes()
    code, out, err = run("print('ran')", "--gpu", "64MiB", "-o", "x.legroom")
    assert (code, out) == (2, "")
    assert "x.legroom already exists. Add `--force` to overwrite the file, or specify another path." in err
    assert (tmp_path / "x.legroom").read_bytes() == before


def test_the_output_is_checked_before_the_script(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch\n")
    assert main(["run", "-o", "train.py"]) == 2
    assert capfd.readouterr().err == (
        "legroom: train.py is a script, and Legroom will never write a script. "
        "Specify another path, for example `-o train.legroom`.\n"
    )


def test_force_overwrites_a_capture(run, tmp_path):
    run("print()", "--gpu", "64MiB", "-o", "x.legroom")
    code, _, _ = run("raise SystemExit(9)", "--gpu", "64MiB", "-o", "x.legroom", "--force")
    assert code == 9
    assert [e.exit_code for e in read_capture(tmp_path / "x.legroom").events if isinstance(e, RunEnded)] == [
        9
    ]


def test_a_capture_path_that_cannot_be_written_is_rejected_before_the_run(run):
    code, out, err = run("print('ran')", "--gpu", "64MiB", "-o", "no/such/folder/x.legroom")
    assert (code, out) == (2, "")
    assert "is not a directory. Create the directory, or specify another path." in err


def test_a_module_without_main_leaves_no_capture(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare/__init__.py").write_text("")
    assert main(["run", "--gpu", "64MiB", "-m", "bare"]) == 2
    assert "`bare` is a package without a `__main__.py`" in capfd.readouterr().err
    assert list(tmp_path.glob("*.legroom")) == []


@pytest.mark.slow
def test_the_interpreter_state_is_restored_after_a_run(run):
    import sys

    import torch

    before = (sys.argv, list(sys.path), sys.modules["__main__"], os._exit, torch.cuda.is_available)
    run(FAILS, "--gpu", "64MiB")
    assert (sys.argv, list(sys.path), sys.modules["__main__"], os._exit, torch.cuda.is_available) == before


def test_an_internal_error_does_not_change_the_exit_code(run, monkeypatch):
    def broken(*args, **kwargs):
        raise TypeError("our bug")

    monkeypatch.setattr("legroom.run.recording.report_from_ledger", broken)
    code, _, err = run("raise SystemExit(3)", "--gpu", "64MiB")
    assert code == 3
    assert "legroom: Could not create the report (TypeError: our bug). The run is not affected." in err


def test_a_capture_name_that_appears_concurrently_is_skipped(run, monkeypatch, tmp_path):
    (tmp_path / "train.legroom").write_bytes(b"another rank's")
    real, calls = os.path.lexists, []

    def lexists(path):
        calls.append(path)
        return False if len(calls) == 1 else real(path)

    monkeypatch.setattr("legroom.run.capture_path.os.path.lexists", lexists)
    run("print()", "--gpu", "64MiB")
    assert (tmp_path / "train.legroom").read_bytes() == b"another rank's"
    assert (tmp_path / "train-2.legroom").exists()


def _no_space(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("options", [(), ("-o", "x.legroom"), ("--force",)], ids=["", "-o", "--force"])
def test_a_script_runs_although_no_capture_can_be_created(run, monkeypatch, tmp_path, options):
    monkeypatch.setattr(ChunkFile, "_write_all", _no_space)
    code, out, err = run("print('ran')\nraise SystemExit(4)", "--gpu", "64MiB", *options)
    assert (code, out) == (4, "ran\n")
    assert err.count("No capture is written.") == 1
    assert "the disk is full. Free some space, or specify another path" in err
    assert list(tmp_path.glob("*.legroom")) == []


@pytest.mark.slow
def test_a_script_runs_to_its_end_although_the_disk_fills_up(run, monkeypatch):
    write_all, writes = ChunkFile._write_all, []

    def fills_up(self, data):
        writes.append(len(data))
        if len(writes) > 2:
            _no_space()
        write_all(self, data)

    monkeypatch.setattr(ChunkFile, "_write_all", fills_up)
    code, out, err = run(TRAINS + "print('ran')\nraise SystemExit(4)", "--gpu", "64MiB")
    assert (code, out) == (4, "ran\n")
    assert err.count("Recording stopped: Cannot write") == 1
    assert "Peak memory: " in err


def test_the_search_for_an_unused_name_ends(run, monkeypatch):
    monkeypatch.setattr("legroom.run.capture_path.MAX_NUMBER", 2)
    for _ in range(3):
        code, out, err = run("print('ran')", "--gpu", "64MiB")
        assert (code, out) == (0, "ran\n")
    assert (
        "No capture is written. train.legroom to train-2.legroom already exist. Specify another path with `-o`."
        in err
    )


def test_an_option_after_the_script_is_explained(run):
    _, _, err = run("import torch\ntorch.ones(2)\n", arguments=("--gpu", "2GiB"))
    assert "put `--gpu` before the script" in " ".join(err.split())
