"""Legroom in the Transformers Trainer.

callback = LegroomCallback()
trainer = Trainer(model, args, train_dataset=dataset, callbacks=[callback])
find_batch(trainer)          # instead of auto_find_batch_size
with callback:               # prints the report if memory runs out
    trainer.train()
"""

from importlib import import_module
from types import TracebackType
from typing import Any

import torch

from legroom.errors import UsageError
from legroom.integrations.training_monitor import FittedBatch, MonitorResults, TrainingMonitor, fit_batch
from legroom.integrations.versions import check_library
from legroom.log import say

check_library("transformers")
TrainerCallback: Any = import_module("transformers").TrainerCallback

MAX_SAMPLES = 1000
"""The number of samples at the start of the dataset among which the longest is selected. The search for the batch size
uses the longest sample.
"""


class LegroomCallback(MonitorResults, TrainerCallback):  # type: ignore[misc]  # untyped
    """Warns about leaks and precision problems while a Trainer trains, and shows the steps in `legroom monitor`. With
    `with callback:` around `trainer.train()`, an out-of-memory error is reported.
    """

    def __init__(self, *, report: bool = True, precision: bool = True) -> None:
        """With `report`, the block `with callback:` records the memory of the GPU. With `precision`, gradients and the
        loss scale are checked at selected steps.
        """
        self._monitor = TrainingMonitor(report=report, precision=precision)

    def __enter__(self) -> "LegroomCallback":
        self._monitor.start_recording()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._monitor.stop_recording(error)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        used = "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32"
        options = {"bf16": "`TrainingArguments(bf16=True)`", "fp16": "`TrainingArguments(fp16=True)`"}
        if used != "fp32" or next(kwargs["model"].parameters()).dtype == torch.float32:
            self._monitor.check_choice(used, args.device, options)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._monitor.next_step()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        optimizer = kwargs["optimizer"]
        self._monitor.check_gradients(optimizer, getattr(optimizer, "scaler", None))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._monitor.end_loop()


def find_batch(trainer: Any) -> FittedBatch:
    """Set the largest `per_device_train_batch_size` that fits, and scale `gradient_accumulation_steps` so that the
    effective batch size stays the same.

    Call this function before `trainer.train()`. In contrast, `auto_find_batch_size` restarts training with half the
    batch size, which changes the effective batch size. The search runs training steps with the longest of the first
    1000 samples, and then restores the model.
    """
    args, model = trainer.args, trainer.model
    if args.auto_find_batch_size:
        raise UsageError("Remove `auto_find_batch_size=True`, which would change the batch size again.")
    if args.n_gpu > 1 or trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        raise UsageError(
            "find_batch supports one GPU per process, without DeepSpeed and FSDP. Use `legroom estimate`."
        )
    effective = args.per_device_train_batch_size * args.gradient_accumulation_steps
    if args.gradient_checkpointing:
        model.gradient_checkpointing_enable(args.gradient_checkpointing_kwargs)
    before = trainer.optimizer
    optimizer = trainer.create_optimizer() or trainer.optimizer
    trainer.current_gradient_accumulation_steps = 1

    def backward(batch: Any) -> None:
        trainer.training_step(model, batch)

    try:
        fitted = fit_batch(backward, optimizer, _batches(trainer), effective=effective, extra_state=(model,))
    finally:
        trainer.optimizer = before
    args.per_device_train_batch_size = fitted.batch_size
    args.gradient_accumulation_steps = fitted.accumulation_steps
    trainer._train_batch_size = args.train_batch_size
    say(str(fitted))
    return fitted


def _batches(trainer: Any) -> Any:
    """Return a function that creates a batch of a given size.

    If samples cannot be accessed by index, return the first batch.
    """
    loader = trainer.get_train_dataloader()
    dataset = loader.dataset
    if isinstance(dataset, torch.utils.data.IterableDataset) or not hasattr(dataset, "__getitem__"):
        return next(iter(loader))
    longest = max((dataset[index] for index in range(min(len(dataset), MAX_SAMPLES))), key=_length)
    return lambda size: loader.collate_fn([longest] * size)


def _length(sample: Any) -> int:
    values = sample.values() if hasattr(sample, "values") else [sample]
    return sum(
        value.numel() if isinstance(value, torch.Tensor) else len(value) if hasattr(value, "__len__") else 1
        for value in values
    )
