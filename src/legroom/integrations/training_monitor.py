"""Functionality that the callbacks of all trainers share: a watched loop, the out-of-memory report, precision checks
and batch sizes.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from legroom.diagnose.oom.recognize import is_oom
from legroom.diagnose.report.growing_lines import Leak
from legroom.errors import UsageError
from legroom.findings import Finding
from legroom.log import log
from legroom.run.record import BlockRecording, record
from legroom.show.common.formatting import format_count
from legroom.show.watch.watch import Watched
from legroom.train.guarding.batches.splitting import BatchArguments
from legroom.train.precision import is_check_step, low_loss_scale, non_finite_gradients
from legroom.train.precision_choice import chosen_precision
from legroom.train.sizes.find_batch import FoundBatchSize, find_batch


class MonitorResults:
    """The findings of a trainer's callback. A callback inherits from this class and sets `_monitor`."""

    _monitor: "TrainingMonitor"

    @property
    def leaks(self) -> list[Leak]:
        """The leaks that were found."""
        return self._monitor.leaks

    @property
    def findings(self) -> list[Finding]:
        """The precision problems that were found."""
        return self._monitor.findings

    @property
    def recording(self) -> BlockRecording | None:
        """The recording of the training, if it was recorded on a GPU."""
        return self._monitor.recording


class TrainingMonitor:
    """Observes the steps of a trainer, and reports each problem once."""

    def __init__(self, *, report: bool = True, precision: bool = True) -> None:
        """With `report`, the memory of a GPU is recorded, and the report is printed after an out-of-memory error. With
        `precision`, gradients and the loss scale are checked at selected steps.
        """
        self.findings: list[Finding] = []
        self.recording: BlockRecording | None = None
        self._report, self._precision = report, precision
        self._steps = _Steps()
        self._watched = Watched(
            self._steps, (__file__, 0), total=None, description="", file=None, quiet=True, on_leak=None
        )
        self._iterator: Iterator[None] | None = None
        self._is_recording = False
        self._optimizer_steps = 0

    @property
    def leaks(self) -> list[Leak]:
        return self._watched.leaks

    # --- one training

    def start_recording(self) -> None:
        if self._report and not self._is_recording and torch.cuda.is_available():
            self.recording = record(leaks=False)
            self.recording.__enter__()
            self._is_recording = True

    def stop_recording(self, error: BaseException | None) -> None:
        self.end_loop()
        if self.recording is None or not self._is_recording:
            return
        self._is_recording = False
        self.recording.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)
        if error is not None and is_oom(error):
            print(f"\n{self.recording}\n", file=sys.stderr, flush=True)

    def next_step(self) -> None:
        """Record the start of a step, which is also the end of the previous step."""
        if self._iterator is None:
            self._steps.is_done = False
            self._iterator = iter(self._watched)
        next(self._iterator)

    def end_loop(self) -> None:
        if self._iterator is not None:
            self._steps.is_done = True
            next(self._iterator, None)
            self._iterator = None

    # --- precision

    def check_gradients(self, optimizer: torch.optim.Optimizer, scaler: Any = None) -> None:
        """Check the gradients before an optimizer step.

        If a GradScaler scales the loss, check the loss scale instead.
        """
        if not self._precision:
            return
        self._optimizer_steps += 1
        if not is_check_step(self._optimizer_steps):
            return
        finding = None
        if scaler is None:
            finding = non_finite_gradients(optimizer, self._optimizer_steps)
        elif scaler.get_scale() < 1.0:
            finding = low_loss_scale(scaler.get_scale(), self._optimizer_steps, 0)
        if finding is not None and finding.code not in {each.code for each in self.findings}:
            self.findings.append(finding)
            log.warning("%s %s %s", finding.code, finding.message, finding.fix)

    def check_choice(self, used: str, device: torch.device, options: dict[str, str]) -> None:
        """Print one line if another precision is better on a GPU. `used` is `bf16`, `fp16` or `fp32`, and `options` maps
        these names to the settings of the trainer.
        """
        if not self._precision or device.type != "cuda":
            return
        best, reason = chosen_precision("auto", device)
        if (used, best) in (("bf16", "fp16"), ("fp32", "bf16"), ("fp32", "fp16")):
            log.warning(
                f"The trainer uses {used}, but {reason}. To change the precision, use {options[best]}."
            )


class _Steps(Iterator[None]):
    """An iterator that yields None once per training step, because the trainer itself loads the batches."""

    is_done = False

    def __next__(self) -> None:
        if self.is_done:
            raise StopIteration


# --- the batch size


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedBatch:
    """A batch size that fits, and the gradient accumulation that keeps the effective batch size."""

    batch_size: int
    """The number of samples in one forward and backward pass on one device."""
    accumulation_steps: int
    effective_batch_size: int
    """The number of samples in one optimizer step on one device, which does not change."""
    found: FoundBatchSize

    def __str__(self) -> str:
        return (
            f"Batch size {self.batch_size} with {format_count(self.accumulation_steps, 'accumulation step')} "
            f"(effective batch size {self.effective_batch_size}). {self.found.reason}"
        )


def fit_batch(
    backward: Callable[[Any], object],
    optimizer: torch.optim.Optimizer,
    batch: Any,
    *,
    effective: int,
    extra_state: tuple[Any, ...] = (),
) -> FittedBatch:
    """Find the largest batch size that fits and divides the effective batch size. `backward` runs the forward and backward
    pass of a batch.
    """

    def step(*parts: Any) -> None:
        whole = list(parts) if len(parts) > 1 else parts[0]
        backward(whole)
        if BatchArguments(parts, {}).batch_size < effective:
            # The training will accumulate gradients, so the next batch runs while the gradients of this one exist.
            backward(whole)
        optimizer.step()
        optimizer.zero_grad()

    if not torch.cuda.is_available():
        raise UsageError(
            "The search for a batch size needs a GPU. On a machine without a GPU, use `with legroom.VirtualGPU('8GiB'):`."
        )
    found = find_batch(
        step,
        batch,
        start=min(4, effective),
        max_batch_size=effective,
        extra_state=(backward, optimizer, *extra_state),
    )
    largest = smallest_over_ranks(found.batch_size)
    size = max(each for each in range(1, largest + 1) if effective % each == 0)
    return FittedBatch(
        batch_size=size,
        accumulation_steps=effective // size,
        effective_batch_size=effective,
        found=found,
    )


def smallest_over_ranks(value: int) -> int:
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return value
    values: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return int(min(values))
