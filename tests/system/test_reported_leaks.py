"""`legroom run` reports leaks of unmodified scripts on a virtual GPU, as text and as JSON."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.corpus.programs import FOLDER, programs

from legroom.cli import main


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Any]:
    monkeypatch.chdir(tmp_path)

    def run(script: Path, *options: str) -> Any:
        main(["run", "--gpu", "1GiB", *options, "-o", "out.legroom", str(script)])
        return capfd.readouterr()

    return run


def test_a_leak_is_reported_with_line_holder_and_kind(run: Callable[..., Any]) -> None:
    name = "06_collected_predictions.py"
    (program,) = [each for each in programs() if each.path == FOLDER / "leaking" / name]
    done = run(program.path, "--format", "json")
    (leak,) = json.loads(done.out[done.out.index("{") :])["leaks"]  # after the output of the script
    assert leak["line"] in program.lines
    assert leak["file"] == str(program.path)
    assert leak["kind"] == program.kind
    assert program.holders[0] in leak["holder"]
    assert "→" in leak["holder"]
    assert {"bytes_per_step", "nodes_per_step", "advice"} <= set(leak)


def test_a_healthy_script_has_no_leaks(run: Callable[..., Any]) -> None:
    done = run(FOLDER / "healthy" / "08_evaluation_every_n.py", "--format", "json")
    assert json.loads(done.out)["leaks"] == []


def test_the_report_shows_the_reference_path(run: Callable[..., Any]) -> None:
    done = run(FOLDER / "leaking" / "02_list_of_losses.py")
    assert "Memory leak  LG" in done.err
    assert "02_list_of_losses.py:15 losses (list, " in done.err
