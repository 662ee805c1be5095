"""The `trial` argument of a training function.

    def train(config, trial):
        model = Net(config["l1"]).to(trial.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
        guard = trial.guard(model, optimizer)          # with a micro-batch size that fits
        for epoch in range(10):
            for x, y in loader:
                guard.step(loss_fn, x.to(trial.device), y.to(trial.device))
            trial.report(loss=validate(model), checkpoint=model.state_dict())

If a trial ends early, `report` raises `StopTrial`, which `except Exception` does not catch.
"""

import contextlib
import errno
import math
import os
import shutil
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from legroom.errors import LegroomError, UsageError
from legroom.tuning.schedule.protocol import Action
from legroom.tuning.space.domains import Categorical, FloatRange, IntRange
from legroom.tuning.space.space import Config
from legroom.units import MiB

if TYPE_CHECKING:
    import torch
    from torch import nn

    from legroom.train.guarding.guard import Guard


FULL_DISK_BYTES = 1 * MiB
"""A disk with less than this number of free bytes is treated as full."""


THE_METRIC = ""
"""The key of a value that the function reports or returns without a name. The value is stored under the name of the
study's metric.
"""


class DiskFull(LegroomError):  # noqa: N818
    """Raised if a checkpoint could not be written because the disk is full. The study ends, and the trial continues
    when the study is resumed."""


class StopTrial(BaseException):
    """Raised to end the trial. `StopTrial` is derived from BaseException, so that `except Exception` in the function
    does not catch it.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportMessage:
    """One report that is sent to the engine."""

    step: int
    metrics: dict[str, float]
    checkpoint: str | None = None
    actual_bytes: int | None = None
    ooms: int = 0
    micro_batch: int | None = None


class Channel(Protocol):
    def report(self, message: ReportMessage) -> Action: ...


@dataclass(slots=True, kw_only=True)
class Trial:
    """The trial that a training function receives."""

    number: int
    config: Config
    folder: Path
    """A folder for this trial's files."""
    device: str = "cpu"
    """The device for the model: `cuda` or `cpu`."""
    rank: int = 0
    ranks: int = 1
    """The number of processes in this trial. If a trial has several processes, their process group is already
    initialized."""
    checkpoint: str | None = None
    """The checkpoint from which the trial continues, or None for a new trial. The checkpoint is a path that was passed
    to `report`, or a file that `report` wrote.
    """
    step: int = 0
    """The number of reports so far. After an interruption, only the reports up to the last checkpoint count."""
    channel: Channel
    _micro_batch: int | None = None
    _guards: "list[weakref.ref[Guard]]" = field(default_factory=list)
    can_split: bool = False
    """True if the function can run in micro-batches, because it has created a Guard or read `micro_batch`."""

    @property
    def micro_batch(self) -> int | None:
        """The micro-batch size in samples with which the trial fits, or None if the full batch fits. Use `micro_batch`
        in a loop that accumulates gradients itself.
        """
        self.can_split = True
        return self._micro_batch

    def guard(self, model: "nn.Module", optimizer: "torch.optim.Optimizer", **options: Any) -> "Guard":
        """Create a `legroom.Guard` with a micro-batch size that fits. The arguments in `options` are passed to
        Guard."""
        from legroom.train.guarding.guard import Guard

        self.can_split = True
        requested = options.pop("max_micro_batch_size", None)
        sizes = [size for size in (requested, self._micro_batch) if size is not None]
        # Sizes are not remembered across trials: each trial has its own memory limit, and the estimate is more precise.
        options.setdefault("cache_sizes", False)
        guard = Guard(model, optimizer, max_micro_batch_size=min(sizes, default=None), **options)
        self._guards.append(weakref.ref(guard))
        return guard

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """Return the value of a parameter with a float range, as in Optuna."""
        return float(self._suggested(name, FloatRange(float(low), float(high), log, step)))

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """Return the value of a parameter with an integer range, as in Optuna."""
        domain = Categorical(tuple(range(low, high + 1, step))) if step != 1 else IntRange(low, high, log)
        return int(self._suggested(name, domain))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Return one of several values, as in Optuna."""
        return self._suggested(name, Categorical(tuple(choices)))

    def _suggested(self, name: str, domain: FloatRange | IntRange | Categorical) -> Any:
        """Return the value that the searcher chose. If the searcher does not know the parameter, its value is sampled
        at random with a seed that depends on the trial.
        """
        if name not in self.config:
            from numpy.random import default_rng

            print(f"`{name}` was not suggested before the study started, so its value is sampled at random.")
            self.config[name] = domain.draw(default_rng((self.number, *name.encode())))
        return self.config[name]

    def should_prune(self) -> bool:
        """Return False. To stop a trial early, `report` raises `StopTrial`."""
        return False

    def report(
        self, metrics: Any = None, step: int | None = None, /, *, checkpoint: Any = None, **named: Any
    ) -> None:
        """Report the progress of the training, as in `trial.report(loss=0.3, accuracy=0.9, checkpoint=model.state_dict())`.

        Metrics can also be passed as a dict, as in `trial.report({"loss": 0.3})`, or without a name, as in Optuna's
        `trial.report(0.3, step)`. A metric is a number, a NumPy scalar or a tensor with one element. `checkpoint` is an
        object that `torch.save` can save, or the path of a file or folder. If the scheduler stops the trial, this call
        raises `StopTrial`.
        """
        if metrics is not None and not isinstance(metrics, Mapping):
            metrics = {THE_METRIC: metrics}
        given = {**(metrics or {}), **named}
        self.step += 1
        message = ReportMessage(
            step=self.step,
            metrics={str(name): _number(name, value) for name, value in given.items()},
            checkpoint=self._save_checkpoint(checkpoint) if self.rank == 0 else None,
            actual_bytes=reserved_peak(),
            ooms=out_of_memory_count(),
            micro_batch=self._smallest_micro_batch(),
        )
        if self.channel.report(message) is not Action.CONTINUE:
            raise StopTrial

    def load_checkpoint(self, **options: Any) -> Any:
        """Load the object that was passed to `report(checkpoint=...)`, or return None for a new trial.

        Tensors are loaded to the CPU, so the loaded state uses no GPU memory. `options` are passed to `torch.load`.
        """
        if self.checkpoint is None:
            return None
        if os.path.isdir(self.checkpoint):
            raise UsageError(
                f"The checkpoint {self.checkpoint} is a folder. Load its files from the path `trial.checkpoint`."
            )
        import torch

        # `report` wrote the file, so it can contain any object, such as the state of a random number generator.
        return torch.load(self.checkpoint, **{"map_location": "cpu", "weights_only": False, **options})

    def _save_checkpoint(self, checkpoint: Any) -> str | None:
        if checkpoint is None:
            return None
        self.folder.mkdir(parents=True, exist_ok=True)
        write: Callable[[Any, Path], object]
        if isinstance(checkpoint, str | os.PathLike):
            source = Path(checkpoint)
            if not source.exists():
                raise UsageError(
                    f"The checkpoint `{source}` passed to `report(checkpoint=...)` does not exist. Save the "
                    "checkpoint first."
                )
            target = self.folder / f"checkpoint-{self.step}{source.suffix}"
            write = shutil.copytree if source.is_dir() else shutil.copy2
            checkpoint = source
        else:
            import torch

            write = torch.save
            target = self.folder / f"checkpoint-{self.step}.pt"
        partial = target.with_name(f".{target.name}")
        with _disk_full_as_error(partial):
            write(checkpoint, partial)
        if target.is_dir():
            shutil.rmtree(target)
        os.replace(partial, target)
        return str(target)

    def _smallest_micro_batch(self) -> int | None:
        done = [guard.last_step for reference in self._guards if (guard := reference()) is not None]
        return min(
            (max(last.split) for last in done if last is not None and len(last.split) > 1), default=None
        )


@contextlib.contextmanager
def _disk_full_as_error(partial: Path) -> Iterator[None]:
    """Convert a disk-full error to `DiskFull`, because torch's error does not mention the disk. Delete the incomplete
    file.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        is_full = getattr(error, "errno", None) == errno.ENOSPC
        is_full = is_full or shutil.disk_usage(partial.parent).free < FULL_DISK_BYTES
        remove(partial)
        if not is_full:
            raise
        raise DiskFull(
            f"the checkpoint cannot be written to {partial.parent} because the disk is full"
        ) from None


def remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def reserved_peak() -> int | None:
    cuda = _cuda_in_use()
    return None if cuda is None else int(cuda.max_memory_reserved())


def out_of_memory_count() -> int:
    cuda = _cuda_in_use()
    return 0 if cuda is None else int(cuda.memory_stats().get("num_ooms", 0))


def _cuda_in_use() -> Any:
    torch = sys.modules.get("torch")
    used = torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized()
    return torch.cuda if used and torch is not None else None


def _number(name: str, value: Any) -> float:
    if name == THE_METRIC and isinstance(value, Mapping | str | bytes | Sequence):
        raise UsageError(
            f"`report` needs a number or named metrics, not {type(value).__name__}. Use `trial.report(loss=...)`."
        )
    if isinstance(value, Mapping | str | bytes):
        raise UsageError(f"`report({name}=...)` needs a number, not {type(value).__name__}.")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UsageError(f"`report({name}=...)` needs a number, not {type(value).__name__}.") from None
    except OverflowError:
        return math.inf
