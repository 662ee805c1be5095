"""`legroom estimate` without `--gpu`."""

import pytest

from legroom.cli.estimate import _gpu_of_this_machine
from legroom.errors import UsageError
from legroom.gpus import machine
from legroom.gpus.catalog import find_gpu
from legroom.gpus.machine import VisibleGpu
from legroom.units import GiB


def test_the_first_visible_gpu_is_used_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: ["any"])
    monkeypatch.setattr(
        machine, "visible_gpus", lambda: [VisibleGpu(index=0, name="Tesla T4", total=15 * GiB)]
    )
    gpu = _gpu_of_this_machine()
    assert (gpu.name, gpu.total, gpu.capability) == ("t4", 15 * GiB, find_gpu("t4").capability)
    assert "for the GPU in this machine: Tesla T4, 15.00 GiB" in capsys.readouterr().err.replace("\n", " ")


def test_without_a_gpu_the_error_names_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpus", list)
    with pytest.raises(UsageError, match="Add `--gpu` with a size"):
        _gpu_of_this_machine()
