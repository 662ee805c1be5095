"""`legroom explain` and `legroom doctor`: text, JSON and exit codes."""

import json
import sys
from pathlib import Path

import pytest

from legroom.cli import main
from legroom.diagnose.doctor import doctor as doctoring
from legroom.diagnose.doctor.machine import Machine
from legroom.diagnose.doctor.torch_check import DeviceResult, TorchFacts
from legroom.units import GiB, MiB

pytestmark = pytest.mark.slow


def test_a_log_is_explained_in_80_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "error.log"
    log.write_text("RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x512 and 256x10)\n")
    assert main(["explain", str(log)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "A linear layer or matrix product expects a last dimension of 256 but got 512.\nLG714  not memory, sure\n"
    )
    assert max(map(len, out.splitlines())) <= 80
    assert out.endswith("Next:\n  legroom explain LG714\n")


def test_json_has_the_documented_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "error.log"
    log.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    assert main(["explain", str(log), "--format", "json", "--no-checks"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["schema"] == "legroom.explain/1"
    assert {"schema", "kind", "certainty", "code", "causes"} <= set(output)
    assert (output["kind"], output["certainty"], output["figures"]["requested"]) == ("oom", "sure", 2 * GiB)
    assert all(set(cause) == {"cause", "check", "fix"} for cause in output["causes"])


def test_code_on_a_page_is_not_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "LG501"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    made = lines.index("model = nn.parallel.DistributedDataParallel(model, device_ids=[local_rank])")
    assert lines[made - 1] == "# torchrun --nproc-per-node=gpu train.py"


def test_a_code_shows_its_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "lg710"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("LG710: A GPU kernel received a value out of range\n")
    assert "legroom run --blocking train.py" in out.replace("\n", " ")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["explain", "LG000"], "Unknown code LG000"),
        (
            ["explain", "no.log"],
            "no.log does not exist. Pass the path to a log, a code such as LG710, or `-` for standard input.",
        ),
        (["explain"], "Missing argument"),
        (["doctor", "--format", "xml"], "Invalid value for '--format'"),
    ],
)
def test_invalid_input_prints_one_line_and_exits_with_2(
    capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"legroom: {sentence}")


def _machine(monkeypatch: pytest.MonkeyPatch, shared: int) -> None:
    facts = TorchFacts(version="2.13.0", devices=(DeviceResult(device="cpu"),))
    monkeypatch.setattr(
        doctoring, "inspect_machine", lambda: Machine(torch="2.13.0", shared_total=shared, shared_free=shared)
    )
    monkeypatch.setattr(doctoring, "check_torch", lambda: facts)


def test_doctor_exits_with_0_without_problems(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _machine(monkeypatch, 8 * GiB)
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("No problems found.\n")
    assert max(map(len, out.splitlines())) <= 80


def test_doctor_exits_with_1_and_shows_the_fix(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _machine(monkeypatch, 64 * MiB)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("1 problem found.\n\nLG915  Only 64.0 MiB of shared memory is free in /dev/shm")
    assert main(["doctor", "--format", "json"]) == 1
    output = json.loads(capsys.readouterr().out)
    assert (output["sound"], [finding["code"] for finding in output["findings"]]) == (False, ["LG915"])


def test_a_known_error_is_explained_below_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "0")
    monkeypatch.setattr(sys, "argv", ["legroom"])
    Path("wrong.py").write_text(
        "import torch\nx = torch.zeros(2, 3, device='cuda')\n"
        "torch.nn.functional.cross_entropy(x, torch.tensor([0, 3], device='cuda'))\n"
    )
    assert main(["run", "--gpu", "1GiB", "--blocking", "wrong.py"]) == 1
    err = capsys.readouterr().err
    assert 'wrong.py", line 3' in err
    assert (
        "legroom: The label 3 is out of range for the number of classes in the model's output. See `legroom explain LG712`."
        in err
    )
    assert "On a real GPU, this error is a device-side assert" in err
    assert main(["explain", "wrong.legroom", "--no-checks"]) == 0
    assert "Target 3 is out of bounds" in capsys.readouterr().out
