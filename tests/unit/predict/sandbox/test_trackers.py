"""Experiment trackers in a traced script."""

import sys
from pathlib import Path

import pytest

from legroom.predict.sandbox import trackers


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder from which `wandb` is imported after the trackers were disabled."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.setattr(trackers, "_VARIABLES", {})
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    trackers.disable_trackers()
    return tmp_path


@pytest.mark.parametrize(
    "module", ["log = print", "init = None", "def init(project):\n    return project", "init = print"]
)
def test_a_module_of_the_user_with_the_name_of_a_tracker_is_not_changed(folder: Path, module: str) -> None:
    (folder / "wandb.py").write_text(module)
    import wandb

    if "project" in module:
        assert wandb.init("mine") == "mine"


@pytest.mark.parametrize("run", ["None", "type('Run', (), {'dir': None})"])
def test_a_run_without_a_folder_is_disabled(folder: Path, run: str) -> None:
    (folder / "wandb.py").write_text(
        f"modes = []\ndef init(mode=None):\n    modes.append(mode)\n    return {run}"
    )
    import wandb

    wandb.init(mode="online")
    assert wandb.modes == ["disabled"]
