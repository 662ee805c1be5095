"""The integrations and the pytest marks on a real GPU with a memory limit in PyTorch's allocator."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from legroom.units import GiB, MiB

pytest_plugins = ["pytester"]
WIDTH = 64
BATCH = 16


@contextmanager
def limited_to(size: int) -> Iterator[None]:
    """Limit the memory of PyTorch's allocator to `size` bytes more than it uses now."""
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + size) / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()


class Regression(nn.Module):
    """A model with 64 MiB of activations per sample."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scales = nn.Parameter(torch.randn(WIDTH, 1 << 17) / WIDTH)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        outputs = (x[:, :, None] * self.scales).relu().mean((1, 2))
        return {"loss": nn.functional.mse_loss(outputs, labels)}


def make_data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(64, WIDTH, generator=generator), torch.randn(64, generator=generator)


def assert_is_report(text: str) -> None:
    assert "Out of memory at step 0 in the forward pass, at" in text
    assert "Memory by line" in text
    assert "test_integrations_on_gpu.py" in text


def test_the_lightning_callback_works_on_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    lightning = pytest.importorskip("pytorch_lightning")
    from legroom.integrations.lightning import LegroomCallback

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.batch_size, self.model = BATCH, Regression()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return self.model(*batch)["loss"]

        def train_dataloader(self) -> Any:
            return DataLoader(TensorDataset(*make_data()), self.batch_size)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fit(callback: LegroomCallback) -> Any:
        logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
        trainer = lightning.Trainer(
            callbacks=[callback], max_steps=2, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, accelerator="gpu", devices=1,
        )  # fmt: skip
        trainer.fit(Module())
        return trainer

    with limited_to(1 * GiB):
        with pytest.raises(torch.OutOfMemoryError):
            fit(LegroomCallback())
        assert_is_report(capsys.readouterr().err)
        callback = LegroomCallback(find_batch=True)
        trainer = fit(callback)
    assert callback.fitted_batch is not None
    assert callback.fitted_batch.batch_size in (2, 4)
    assert callback.fitted_batch.effective_batch_size == BATCH
    assert trainer.global_step == 2


def test_the_transformers_callback_works_on_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    transformers = pytest.importorskip("transformers")
    from legroom.integrations.transformers import LegroomCallback, find_batch

    callback = LegroomCallback()

    def make_trainer() -> Any:
        return transformers.Trainer(
            Regression(),
            transformers.TrainingArguments(
                str(tmp_path), per_device_train_batch_size=BATCH, max_steps=2, report_to=[],
                save_strategy="no", disable_tqdm=True, logging_strategy="no",
            ),
            train_dataset=[{"x": x, "labels": y} for x, y in zip(*make_data(), strict=True)],
            callbacks=[callback],
        )  # fmt: skip

    with limited_to(1 * GiB):
        with pytest.raises(torch.OutOfMemoryError), callback:
            make_trainer().train()
        assert_is_report(capsys.readouterr().err)
        trainer = make_trainer()
        fitted = find_batch(trainer)
        trainer.train()
    assert fitted.batch_size in (2, 4)
    assert fitted.effective_batch_size == BATCH
    assert trainer.state.global_step == 2


@pytest.mark.parametrize("precision", ["no", "fp16", "bf16"])
def test_guard_works_with_accelerate_on_a_gpu(precision: str) -> None:
    accelerate = pytest.importorskip("accelerate")
    from legroom.integrations.accelerate import make_guard

    x, y = (each[:BATCH].cuda() for each in make_data())
    trained = []
    for guarded in (False, True):
        accelerator = accelerate.Accelerator(mixed_precision=precision)
        model: Any = Regression()
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        if guarded:
            with limited_to(1 * GiB):
                guard = make_guard(accelerator, model, optimizer, cache_sizes=False)
                guard.step(lambda x, y, model=model: model(x, y)["loss"], x, y)
        else:
            accelerator.backward(model(x, y)["loss"])
            optimizer.step()
        trained.append(next(model.parameters()).detach().cpu())
        for state in ("AcceleratorState", "GradientState", "PartialState"):
            getattr(accelerate.state, state)._reset_state()
    torch.testing.assert_close(*trained, rtol=1e-3, atol=1e-5)


def test_the_pytest_marks_work_on_a_gpu(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest, torch
        kept = []
        def allocate(mib):
            return torch.empty(mib << 20, dtype=torch.uint8, device="cuda")
        @pytest.mark.gpu_memory("1 GiB")
        def test_fits(): allocate(900)
        @pytest.mark.gpu_memory("1 GiB")
        def test_too_large(): allocate(1100)
        @pytest.mark.no_leaks
        def test_leaks(): kept.append(allocate(8))
        @pytest.mark.no_leaks
        def test_frees(): allocate(8)
        """
    )
    result = pytester.runpytest_subprocess(
        "-p", "legroom.integrations.pytest_plugin", "-p", "no:cacheprovider"
    )
    result.assert_outcomes(passed=3, failed=1, errors=1)
    result.stdout.fnmatch_lines_random(
        ["*of GPU memory, but only 1.00 GiB is allowed*", f"*{8 * MiB // MiB}.0 MiB of GPU memory is still*"]
    )
