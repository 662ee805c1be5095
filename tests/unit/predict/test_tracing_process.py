"""What holds in the process that traces a script."""

from pathlib import Path

import pytest
import torch

from legroom.predict.tracing_process import _checkpoints_mapped

MAPS = Path("/proc/self/maps")


@pytest.mark.skipif(not MAPS.exists(), reason="what a process has mapped is read from Linux")
def test_a_checkpoint_is_mapped_and_takes_no_memory(tmp_path: Path) -> None:
    torch.save({"weight": torch.arange(1000)}, tmp_path / "checkpoint.pt")
    with _checkpoints_mapped():
        loaded = torch.load(tmp_path / "checkpoint.pt", map_location="cpu")["weight"]
        assert str(tmp_path / "checkpoint.pt") in MAPS.read_text()
    assert loaded[999] == 999


def test_an_old_checkpoint_that_cannot_be_mapped_is_read(tmp_path: Path) -> None:
    torch.save(torch.arange(10), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    with _checkpoints_mapped():
        assert torch.load(tmp_path / "old.pt")[9] == 9
