"""`legroom run --log`: the memory of each step and the report, in TensorBoard and in wandb."""

import importlib.util
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from legroom.cli import main
from legroom.errors import LegroomError
from legroom.memory.events import Step
from legroom.run.memory_log import check_log, open_log
from legroom.units import MiB

TRAINS = """
import torch
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(64, 256, device="cuda")).sum().backward()
    optimizer.step()
"""


def step(number: int, device: int = 0) -> Step:
    return Step(0.1 * number, number, 0.1, device, 10 * MiB, 20 * MiB, 15 * MiB, 25 * MiB)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.chdir(tmp_path)

    def run(source: str, *options: str) -> tuple[int, str]:
        Path("train.py").write_text(source)
        return main(["run", "--gpu", "64MiB", *options, "train.py"]), capfd.readouterr().err

    return run


def events_in(folder: Path) -> Any:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulators.EventAccumulator(str(folder))
    found.Reload()
    return found


class FakeRun:
    """A fake wandb run that stores all values passed to it."""

    id, project, entity = "1", "project", "me"

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.rows: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.summary: dict[str, Any] = {}
        self.pages: dict[str, str] = {}
        self.is_finished = False

    def log(self, values: dict[str, Any], **options: Any) -> None:
        self.rows.append((values, options))

    def log_artifact(self, artifact: Any) -> None:
        self.pages |= artifact.pages

    def finish(self) -> None:
        self.is_finished = True


class FakeArtifact:
    def __init__(self, name: str, type: str) -> None:
        self.pages: dict[str, str] = {}

    def add_file(self, path: str) -> None:
        self.pages[Path(path).name] = Path(path).read_text(encoding="utf-8")


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A replacement for the module `wandb`. `wandb.started` contains the runs that were started."""
    module: Any = SimpleNamespace(
        run=None, started=[], Artifact=FakeArtifact, Settings=lambda **values: values
    )

    def init(**options: Any) -> FakeRun:
        module.started.append(FakeRun(**options))
        return module.started[-1]

    module.init, module.__spec__ = init, importlib.util.spec_from_loader("wandb", None)
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return module


@pytest.mark.slow
def test_tensorboard_has_the_memory_of_each_step_and_the_report(run: Any, tmp_path: Path) -> None:
    code, err = run(TRAINS, "--log", "tensorboard")
    assert code == 0
    assert "Logging to TensorBoard in train.tensorboard." in err
    events = events_in(tmp_path / "train.tensorboard")
    assert [each.step for each in events.Scalars("memory/allocated_mib")] == [0, 1, 2, 3]
    assert events.Scalars("memory/peak_reserved_mib")[-1].value == 2.0
    text = events.Tensors("legroom report/text_summary")[0].tensor_proto.string_val[0].decode()
    assert text.startswith("    Finished after 4 steps (")
    assert "    Memory by line\n" in text


def test_tensorboard_writes_to_the_given_folder(tmp_path: Path) -> None:
    log = open_log(f"tensorboard:{tmp_path / 'runs'}", capture=Path("train.legroom"), several_gpus=True)
    log.add([step(0), step(0, device=1)])
    log.close(None, None)
    events = events_in(tmp_path / "runs")
    assert events.Scalars("memory/gpu1/reserved_mib")[0].value == 20.0
    assert events.Scalars("memory/gpu0/peak_allocated_mib")[0].value == 15.0


@pytest.mark.slow
def test_wandb_without_a_run_of_the_script_starts_one_offline(run: Any, wandb: Any, tmp_path: Path) -> None:
    code, _ = run(TRAINS, "--log", "wandb")
    assert code == 0
    (started,) = wandb.started
    assert started.options["mode"] == "offline"
    assert started.options["dir"] == str(tmp_path)
    assert [options["step"] for _, options in started.rows] == [0, 1, 2, 3]
    assert started.rows[0][0]["memory/reserved_mib"] == 2.0
    assert started.summary["legroom"].startswith("Finished after 4 steps")
    assert started.pages["train.html"].startswith("<!doctype html>")
    assert started.is_finished


def test_steps_that_end_while_wandb_starts_a_run_are_logged_later(wandb: Any, tmp_path: Path) -> None:
    log = open_log("wandb", capture=tmp_path / "train.legroom", several_gpus=False)
    start = wandb.init

    def slow_init(**options: Any) -> FakeRun:
        log.add([step(1)])
        log.write()  # by another thread
        return start(**options)

    wandb.init = slow_init
    log.add([step(0)])
    log.write()
    log.close(None, None)
    (started,) = wandb.started
    assert [options["step"] for _, options in started.rows] == [0, 1]


def test_the_run_of_the_script_gets_the_values_with_its_own_rows(wandb: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    wandb.run = FakeRun()
    log = open_log("wandb", capture=Path("train.legroom"), several_gpus=False)
    log.add([step(0), step(1)])
    log.close(None, None)
    assert not wandb.started
    assert [options for _, options in wandb.run.rows] == [{"commit": False}] * 2
    assert wandb.run.rows[1][0]["memory/step"] == 1
    assert not wandb.run.is_finished


def test_a_run_that_the_script_has_finished_is_resumed_for_the_report(
    wandb: Any, monkeypatch: Any, tmp_path: Path, make_run: Any
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    wandb.run = FakeRun()
    log = open_log("wandb", capture=tmp_path / "train.legroom", several_gpus=False)
    log.add([step(0)])
    log.write()
    wandb.run = None
    made = make_run()
    made.ends(0, "finished")
    log.close(made.report(), None)
    (resumed,) = wandb.started
    assert (resumed.options["id"], resumed.options["resume"], resumed.options["mode"]) == (
        "1",
        "allow",
        "online",
    )
    assert resumed.summary["legroom"].startswith("Finished in 12 s.")


def test_an_error_of_the_log_is_reported_in_one_warning(wandb: Any, caplog: pytest.LogCaptureFixture) -> None:
    def fail(**options: Any) -> None:
        raise ConnectionError("no route to host")

    wandb.init = fail
    log = open_log("wandb", capture=Path("train.legroom"), several_gpus=False)
    with caplog.at_level(logging.WARNING, logger="legroom"):
        log.add([step(0), step(1)])
        log.write()
        log.close(None, None)
    assert caplog.messages == [
        "The wandb log could not be written (ConnectionError: no route to host). The script continues without this log."
    ]


@pytest.mark.parametrize("value", ["comet", "wandb:project", "tensorboard:", "tensorboard:train.py"])
def test_an_invalid_log_is_rejected_before_the_script_starts(run: Any, value: str) -> None:
    code, err = run("print('started')", "--log", value)
    assert code == 2
    assert err.startswith("legroom: ")
    assert err.count("\n") == 1
    assert "--log tensorboard:DIR" in err


@pytest.mark.parametrize("kind", ["tensorboard", "wandb"])
def test_a_missing_package_is_reported_with_the_command_to_install_it(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LegroomError, match=r"is not installed: pip install .*log"):
        check_log(kind)
