"""Legroom in Lightning's Trainer.

    trainer = Trainer(callbacks=[LegroomCallback(find_batch=True)])
    trainer.fit(module)

Both Lightning packages are supported: `lightning` and `pytorch_lightning`.
"""

import sys
from importlib import import_module
from typing import Any

import torch

from legroom.errors import UsageError
from legroom.integrations.training_monitor import FittedBatch, MonitorResults, TrainingMonitor, fit_batch
from legroom.integrations.versions import check_library
from legroom.log import say
from legroom.observe.leaks.counters import cuda_allocated_and_peak

_PACKAGES = {"lightning": "lightning.pytorch", "pytorch-lightning": "pytorch_lightning"}
_imported = [name for name, package in _PACKAGES.items() if package in sys.modules]
_package = _PACKAGES[check_library(*_imported, *_PACKAGES)]
"""The Lightning package that the program has imported, or else the installed package."""
Callback: Any = import_module(_package).Callback


class LegroomCallback(MonitorResults, Callback):  # type: ignore[misc]  # untyped
    """Warns about leaks and precision problems, reports an out-of-memory error, logs the GPU memory, and shows the
    steps in `legroom monitor`."""

    def __init__(self, *, report: bool = True, precision: bool = True, find_batch: bool = False) -> None:
        """With `report`, the memory of the GPU is recorded, and the report is printed after an out-of-memory error.
        With `precision`, the precision, gradients and loss scale are checked. With `find_batch`, the largest
        `batch_size` that fits is set before training, and `accumulate_grad_batches` is scaled so that the effective
        batch size stays the same."""
        super().__init__()
        self._monitor = TrainingMonitor(report=report, precision=precision)
        self._find_batch = find_batch
        self.fitted_batch: FittedBatch | None = None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        options = {"bf16": '`Trainer(precision="bf16-mixed")`', "fp16": '`Trainer(precision="16-mixed")`'}
        name = str(trainer.precision)
        used = "bf16" if "bf16" in name else "fp16" if name.startswith("16") else "fp32"
        self._monitor.check_choice(used, trainer.strategy.root_device, options)
        if self._find_batch:
            self.fitted_batch = _find_batch(trainer, pl_module)
            say(str(self.fitted_batch))
        self._monitor.start_recording()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._monitor.next_step()

    def on_before_optimizer_step(
        self, trainer: Any, pl_module: Any, optimizer: torch.optim.Optimizer
    ) -> None:
        self._monitor.check_gradients(optimizer, getattr(trainer.precision_plugin, "scaler", None))

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.loggers and (batch_idx + 1) % trainer.log_every_n_steps == 0:
            allocated, peak = cuda_allocated_and_peak()
            if peak:
                metrics = {"gpu_memory/allocated_bytes": allocated, "gpu_memory/peak_bytes": peak}
                for logger in trainer.loggers:
                    logger.log_metrics(metrics, step=trainer.global_step)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._monitor.stop_recording(exception)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        self._monitor.stop_recording(None)


def _find_batch(trainer: Any, module: Any) -> FittedBatch:
    data = trainer.datamodule or module
    owners = (data, module, data.hparams, module.hparams)
    owner = next((each for each in owners if hasattr(each, "batch_size")), None)
    if owner is None or not isinstance(owner.batch_size, int):
        raise UsageError(
            "find_batch requires a `batch_size` attribute or hyperparameter on the module or data module, and a `train_dataloader` method "
            "that uses it."
        )
    if not module.automatic_optimization or len(trainer.optimizers) != 1:
        raise UsageError(
            "find_batch requires automatic optimization with one optimizer. Use `legroom.find_batch`."
        )
    (optimizer,) = trainer.optimizers

    def backward(batch: Any) -> None:
        with trainer.precision_plugin.train_step_context():
            loss = module.training_step(trainer.strategy.batch_to_device(batch), 0)
        (loss["loss"] if isinstance(loss, dict) else loss).backward()

    # Lightning rejects metrics outside its loops.
    silent = {"log": _ignore, "log_dict": _ignore}
    vars(module).update(silent)
    was_training = module.training
    module.train()
    try:
        fitted = fit_batch(
            backward,
            optimizer,
            next(iter(data.train_dataloader())),
            effective=owner.batch_size * trainer.accumulate_grad_batches,
            extra_state=(module,),
        )
    finally:
        module.train(was_training)
        for name in silent:
            del vars(module)[name]
    owner.batch_size = fitted.batch_size
    trainer.accumulate_grad_batches = fitted.accumulation_steps
    return fitted


def _ignore(*args: Any, **kwargs: Any) -> None:
    """Do nothing. This function replaces Lightning's method that logs metrics."""
