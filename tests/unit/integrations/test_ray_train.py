"""Training functions of Ray Train, in Ray Train's local mode, which starts no other process."""

from pathlib import Path
from typing import Any

import pytest
import torch

import legroom

pytest.importorskip("ray")
train: Any = pytest.importorskip("ray.train.torch", reason="Ray Train is not installed")
from legroom.integrations.ray_train import memory_metrics, observed  # noqa: E402

pytestmark = pytest.mark.slow


def fit(function: Any, folder: Path) -> Any:
    import ray.train

    return train.TorchTrainer(
        function,
        scaling_config=ray.train.ScalingConfig(num_workers=0),
        run_config=ray.train.RunConfig(storage_path=str(folder)),
    ).fit()


def test_an_out_of_memory_error_is_reported_with_the_rank_and_raised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    @observed
    def train_loop() -> None:
        torch.zeros(1 << 30, dtype=torch.uint8, device="cuda")

    with legroom.VirtualGPU("64MiB"), pytest.raises(torch.OutOfMemoryError):
        fit(train_loop, tmp_path)
    report = capsys.readouterr().err
    assert "legroom: Rank 0 ran out of GPU memory.\nOut of memory at step 0" in report
    assert "test_ray_train.py" in report


def test_the_memory_can_be_reported_as_metrics(tmp_path: Path) -> None:
    import ray.train

    @observed
    def train_loop() -> None:
        torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
        ray.train.report({"loss": 1.0, **memory_metrics()})

    with legroom.VirtualGPU("64MiB"):
        metrics = fit(train_loop, tmp_path).metrics
    assert metrics == {"loss": 1.0, "gpu_memory_allocated_bytes": 0, "gpu_memory_peak_bytes": 1 << 20}


def test_without_a_gpu_the_function_is_called_unchanged() -> None:
    assert observed(lambda config: config)(3) == 3
    assert memory_metrics() == {"gpu_memory_allocated_bytes": 0, "gpu_memory_peak_bytes": 0}
