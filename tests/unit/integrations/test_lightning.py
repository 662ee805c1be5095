"""The callback for the Trainer of Lightning, on a virtual GPU."""

import logging
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import legroom
from legroom.errors import UsageError

pytestmark = pytest.mark.slow

lightning: Any = None
for _package in ("lightning.pytorch", "pytorch_lightning"):
    try:
        lightning = pytest.importorskip(_package, reason="Lightning is not installed")
        break
    except pytest.skip.Exception:
        continue
if lightning is None:
    pytest.skip("Lightning is not installed", allow_module_level=True)
from legroom.integrations.lightning import LegroomCallback  # noqa: E402

WIDTH = 64


class Regression(lightning.LightningModule):  # type: ignore[misc]
    """A small model with 2 MiB of activations per sample."""

    def __init__(
        self, batch_size: int = 16, label: float = 1.0, kept: list[torch.Tensor] | None = None
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.batch_size = batch_size
        self.label = label
        self.kept = kept
        self.scales = nn.Parameter(torch.randn(WIDTH, 4096) / WIDTH)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        x, labels = batch
        loss = nn.functional.mse_loss((x[:, :, None] * self.scales).relu().mean((1, 2)), labels)
        self.log("loss", loss)
        if self.kept is not None:
            self.kept.append(loss)
        return loss

    def train_dataloader(self) -> Any:
        x = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(0))
        return DataLoader(TensorDataset(x, torch.full((64,), self.label)), self.batch_size)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Metrics(lightning.loggers.logger.Logger if lightning else object):  # type: ignore[misc]
    """A logger that keeps its metrics."""

    name, version = "metrics", 0

    def __init__(self) -> None:
        super().__init__()
        self.logged: dict[str, float] = {}

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.logged.update(metrics)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None: ...


def make_trainer(callback: LegroomCallback | None = None, **options: Any) -> Any:
    arguments = {
        "max_steps": 4,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "barebones": False,
        "log_every_n_steps": 1,
        **options,
    }
    return lightning.Trainer(callbacks=[] if callback is None else [callback], **arguments)


@pytest.fixture(autouse=True)
def _quiet() -> None:
    logging.getLogger(lightning.__name__).setLevel(logging.ERROR)


def weights(module: nn.Module) -> torch.Tensor:
    return torch.cat([each.detach().flatten().cpu() for each in module.parameters()])


def test_the_batch_size_that_fits_keeps_the_effective_batch_size_and_the_training() -> None:
    with legroom.VirtualGPU("8GiB"):
        plain = Regression()
        make_trainer().fit(plain)
        expected = weights(plain)
        del plain
    callback = LegroomCallback(find_batch=True)
    metrics = Metrics()
    with legroom.VirtualGPU("32MiB"):
        module = Regression()
        trainer = make_trainer(callback, logger=metrics)
        trainer.fit(module)
        trained = weights(module)
    fitted = callback.fitted_batch
    assert fitted is not None
    assert (fitted.batch_size, fitted.accumulation_steps, fitted.effective_batch_size) == (4, 4, 16)
    assert (module.batch_size, trainer.accumulate_grad_batches, trainer.global_step) == (4, 4, 4)
    assert {"loss", "gpu_memory/peak_bytes", "gpu_memory/allocated_bytes"} <= metrics.logged.keys()
    torch.testing.assert_close(trained, expected, rtol=1e-5, atol=1e-7)


def test_an_out_of_memory_error_is_reported_and_raised(capsys: pytest.CaptureFixture[str]) -> None:
    callback = LegroomCallback()
    with legroom.VirtualGPU("32MiB"), pytest.raises(torch.OutOfMemoryError):
        make_trainer(callback).fit(Regression())
    report = capsys.readouterr().err
    assert "Out of memory at step 0 in the forward pass, at" in report
    assert "test_lightning.py" in report


def test_a_leak_and_non_finite_gradients_are_found(caplog: pytest.LogCaptureFixture) -> None:
    callback = LegroomCallback()
    kept: list[torch.Tensor] = []
    with legroom.VirtualGPU("8GiB"):
        make_trainer(callback, max_steps=24).fit(Regression(1, float("inf"), kept))
    (leak,) = callback.leaks
    assert "kept" in (leak.holder or "")
    assert [finding.code for finding in callback.findings] == ["LG421"]
    assert 'To change the precision, use `Trainer(precision="bf16-mixed")`.' in caplog.text


def test_the_batch_size_may_be_a_hyperparameter_of_a_data_module() -> None:
    class Data(lightning.LightningDataModule):  # type: ignore[misc]
        def __init__(self, batch_size: int = 16) -> None:
            super().__init__()
            self.save_hyperparameters()

        def train_dataloader(self) -> Any:
            return DataLoader(TensorDataset(torch.randn(32, WIDTH), torch.ones(32)), self.hparams.batch_size)

    data, module = Data(), Regression()
    del module.batch_size
    with legroom.VirtualGPU("32MiB"):
        make_trainer(LegroomCallback(find_batch=True), max_steps=1).fit(module, data)
    assert data.hparams.batch_size == 4


def test_a_module_without_a_batch_size_is_reported_in_one_line() -> None:
    module = Regression()
    del module.batch_size
    with (
        legroom.VirtualGPU("8GiB"),
        pytest.raises(UsageError, match="requires a `batch_size` attribute or hyperparameter"),
    ):
        make_trainer(LegroomCallback(find_batch=True)).fit(module)
