"""The callback and the batch size search for the Trainer of Transformers, on a virtual GPU."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import legroom
from legroom.errors import UsageError

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from legroom.integrations.transformers import LegroomCallback, find_batch  # noqa: E402

pytestmark = pytest.mark.slow

WIDTH = 64


class Regression(nn.Module):
    """A small model with 2 MiB of activations per sample."""

    def __init__(self, kept: list[torch.Tensor] | None = None) -> None:
        super().__init__()
        self.scales = nn.Parameter(torch.randn(WIDTH, 4096) / WIDTH)
        self.kept = kept

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        loss = nn.functional.mse_loss((x[:, :, None] * self.scales).relu().mean((1, 2)), labels)
        if self.kept is not None:
            self.kept.append(loss)
        return {"loss": loss}


def make_dataset(count: int = 64) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        {"x": torch.randn(WIDTH, generator=generator), "labels": torch.randn((), generator=generator)}
        for _ in range(count)
    ]


def make_trainer(folder: Path, model: nn.Module | None = None, callbacks: Any = (), **options: Any) -> Any:
    arguments = {
        "per_device_train_batch_size": 16,
        "max_steps": 4,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "logging_strategy": "no",
        "dataloader_pin_memory": False,
        **options,
    }
    torch.manual_seed(0)
    return transformers.Trainer(
        model or Regression(),
        transformers.TrainingArguments(str(folder), **arguments),
        train_dataset=make_dataset(),
        callbacks=[*callbacks],
    )


def weights(trainer: Any) -> torch.Tensor:
    return torch.cat([each.detach().flatten().cpu() for each in trainer.model.parameters()])


def test_the_batch_size_that_fits_keeps_the_effective_batch_size_and_the_training(tmp_path: Path) -> None:
    with legroom.VirtualGPU("8GiB"):
        plain = make_trainer(tmp_path)
        plain.train()
        expected = weights(plain)
        del plain
    with legroom.VirtualGPU("32MiB"):
        trainer = make_trainer(tmp_path)
        before = weights(trainer)
        fitted = find_batch(trainer)
        assert torch.equal(weights(trainer), before)
        trainer.train()
        assert not torch.equal(weights(trainer), before)
    args = trainer.args
    assert (fitted.batch_size, fitted.accumulation_steps, fitted.effective_batch_size) == (4, 4, 16)
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (4, 4)
    assert 4 < fitted.found.batch_size < 8  # but 16 samples cannot be split evenly into more than 4
    assert trainer.state.global_step == 4
    torch.testing.assert_close(weights(trainer), expected, rtol=1e-5, atol=1e-7)


def test_the_longest_sample_determines_the_batch_size(tmp_path: Path) -> None:
    from legroom.integrations.transformers import _batches

    trainer = make_trainer(tmp_path)
    trainer.train_dataset = [{"x": torch.zeros(length), "labels": torch.zeros(())} for length in (3, 9, 5)]
    assert _batches(trainer)(2)["x"].shape == (2, 9)


def test_an_out_of_memory_error_is_reported_and_raised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    callback = LegroomCallback()
    with legroom.VirtualGPU("32MiB"):
        trainer = make_trainer(tmp_path, callbacks=[callback])
        with pytest.raises(torch.OutOfMemoryError), callback:
            trainer.train()
    report = capsys.readouterr().err
    assert "Out of memory at step 0 in the forward pass, at" in report
    assert "test_transformers.py" in report
    assert callback.recording is not None
    assert callback.recording.oom is not None


def test_a_leak_and_non_finite_gradients_are_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    callback = LegroomCallback()
    kept: list[torch.Tensor] = []
    with legroom.VirtualGPU("8GiB"):
        trainer = make_trainer(
            tmp_path, Regression(kept), [callback], max_steps=24, per_device_train_batch_size=1
        )
        for sample in trainer.train_dataset:
            sample["labels"].fill_(float("inf"))
        trainer.train()
    (leak,) = callback.leaks
    assert "kept" in (leak.holder or "")
    assert "legroom: memory leak detected" in capsys.readouterr().err
    assert [finding.code for finding in callback.findings] == ["LG421"]
    assert "LG421 Non-finite gradients of 1 parameter" in caplog.text


def test_another_precision_is_suggested_once_for_a_gpu(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with legroom.VirtualGPU("t4"):
        make_trainer(tmp_path, callbacks=[LegroomCallback()], max_steps=1).train()
    assert "The trainer uses fp32, but " in caplog.text
    assert "To change the precision, use `TrainingArguments(fp16=True)`." in caplog.text


def test_a_batch_size_that_the_trainer_would_change_is_reported_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Remove `auto_find_batch_size=True`"):
        find_batch(make_trainer(tmp_path, auto_find_batch_size=True))
    with pytest.raises(UsageError, match="The search for a batch size needs a GPU"):
        find_batch(make_trainer(tmp_path))
