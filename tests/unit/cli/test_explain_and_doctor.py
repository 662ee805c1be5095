"""`legroom explain` and `legroom doctor`: text, JSON and exit codes."""

import json
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from legroom.cli import main
from legroom.diagnose.codes import all_pages, find_page
from legroom.diagnose.doctor import doctor as doctoring
from legroom.diagnose.doctor.machine import Machine
from legroom.diagnose.doctor.torch_check import DeviceResult, TorchFacts
from legroom.diagnose.explain.explain import EarlierError, Explanation, page_parts
from legroom.show.common.terminal import render_to_string
from legroom.show.explain.explanation import render_short_explanation
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
    assert max(map(len, out.splitlines()[:-1])) <= 80  # a command is not wrapped
    assert main(["explain", str(log), "--verbose"]) == 0
    assert capsys.readouterr().out.endswith("Next:\n  legroom explain LG714\n")


ASSERT = """\
Traceback (most recent call last):
  File "train.py", line 42, in <module>
    loss.backward()
  File "/env/lib/python3.11/site-packages/torch/_tensor.py", line 487, in backward
    torch.autograd.backward(
RuntimeError: CUDA error: device-side assert triggered
CUDA kernel errors might be asynchronously reported at some other API call.
"""


def test_the_first_screen_has_what_happened_where_and_the_first_thing_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("error.log").write_text(ASSERT)
    assert main(["explain", "error.log"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 20
    assert lines[:2] == ["A GPU kernel received a value out of range.", "LG710  not memory, sure"]
    assert lines[3:5] == [
        "  line 6: RuntimeError: CUDA error: device-side assert triggered",
        "  Your code: train.py:42",
    ]
    cause = lines.index("Most likely cause")
    assert any(line.startswith("  Check: ") for line in lines[cause:])
    assert any(line.startswith("  Fix: ") for line in lines[cause:])
    others = lines[lines.index("Other possible causes") + 1 : lines.index("Next:") - 1]
    assert others[0] == "  An index is out of range for an embedding (`srcIndex < srcSelectDimSize`)."
    assert lines[-1] == "  legroom explain --verbose error.log   # all causes, checks and fixes"
    assert main(["explain", "--verbose", "error.log"]) == 0
    complete = capsys.readouterr().out
    assert "Possible causes  most likely first" in complete
    assert complete.count("Check: ") == 4


def test_a_pasted_message_names_the_page_with_all_causes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "CUDA error: device-side assert triggered", "--no-checks"]) == 0
    out = capsys.readouterr().out
    assert out.endswith("Next:\n  legroom explain LG710   # all causes, checks and fixes\n")


@pytest.mark.parametrize("language", ["en", "ko"])
@pytest.mark.parametrize("code", [code for code in all_pages() if code.startswith("LG7")])
def test_every_first_screen_has_at_most_20_lines(
    code: str, language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEGROOM_LANG", language)
    meaning, causes = page_parts(code)
    explanation = Explanation(
        kind="not-memory", certainty="sure", code=code, sentence=f"{find_page(code).title}.", meaning=meaning,
        message="RuntimeError: " + "a long message " * 20, line=1234, causes=causes, here=("memory: 1 GiB",),
        place="/home/user/project/package/subpackage/train_model.py:123",
        earlier=EarlierError(code="LG700", title=find_page("LG700").title, line=3, message="CUDA out of memory"),
    )  # fmt: skip
    lines = render_to_string(
        render_short_explanation(explanation, "a folder/error.log"), width=80
    ).splitlines()
    assert len(lines) <= 20
    assert max(map(cell_len, lines)) <= 80
    assert "a folder/error.log" in lines[-1]
    assert any("train_model.py:123" in line for line in lines)


def test_json_has_the_documented_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "error.log"
    log.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    assert main(["explain", str(log), "--format", "json", "--no-checks"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["schema"] == "legroom.explain/1"
    assert set(output) == {
        "schema", "kind", "certainty", "code", "sentence", "meaning", "message", "line", "causes", "figures", "here",
        "earlier",
    }  # fmt: skip
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
