"""What a training function is given besides its configuration.

    def train(config, trial):
        model = Net(config["l1"]).to(trial.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
        guard = trial.guard(model, optimizer)          # the micro-batch that fits is set
        for epoch in range(10):
            for x, y in loader:
                guard.step(loss_fn, x.to(trial.device), y.to(trial.device))
            trial.report(loss=validate(model), checkpoint=model.state_dict())

`report` is where a trial ends early: it raises `StopTrial`, which no `except Exception` catches.
"""

import contextlib
import errno
import math
import os
import shutil
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from legroom.errors import LegroomError, UsageError
from legroom.tuning.schedule.schedulers import Action
from legroom.tuning.space.space import Config
from legroom.units import MiB

if TYPE_CHECKING:
    import torch
    from torch import nn

    from legroom.train.guarding.guard import Guard


TOO_LITTLE = 1 * MiB
"""Room on a disk that is as good as full."""


class DiskFull(LegroomError):  # noqa: N818
    """A checkpoint could not be written. Not the trial's fault: the study ends, and the trial goes on when it is resumed."""


class StopTrial(BaseException):
    """The trial is to end here. Not an error: it must pass `except Exception`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """One report, on its way to whoever decides."""

    step: int
    metrics: dict[str, float]
    checkpoint: str | None = None
    """A path in the trial's folder."""
    actual_bytes: int | None = None
    """Highest device memory of this process so far, as PyTorch reserved it."""
    ooms: int = 0
    micro_batch: int | None = None


class Channel(Protocol):
    """The way from a trial to whoever decides."""

    def report(self, told: Reported) -> Action:
        """Hand over a report and wait for what is to be done."""


@dataclass(slots=True, kw_only=True)
class Trial:
    """One trial, seen from its function."""

    number: int
    config: Config
    folder: Path
    """Its own, for whatever it wants to keep."""
    device: str = "cpu"
    """Where to put the model: `cuda` or `cpu`."""
    rank: int = 0
    ranks: int = 1
    """Processes of this trial; the process group is there already where there are several."""
    checkpoint: str | None = None
    """What to go on from, where the trial was interrupted or took over another's: the path that `report` was given, or of
    the file that it made. None at a fresh start."""
    step: int = 0
    """Reports so far; after an interruption, those up to the checkpoint."""
    channel: Channel
    _micro_batch: int | None = None
    _guards: "list[weakref.ref[Guard]]" = field(default_factory=list)
    splits: bool = False
    """Whether the function can take a batch in pieces: it has a guard, or asked for `micro_batch`."""

    @property
    def micro_batch(self) -> int | None:
        """Rows at once that fit, for a loop that accumulates gradients itself; None: the whole batch fits."""
        self.splits = True
        return self._micro_batch

    def guard(self, model: "nn.Module", optimizer: "torch.optim.Optimizer", **options: Any) -> "Guard":
        """A `legroom.Guard` with the micro-batch that was found to fit. `options` are the Guard's."""
        from legroom.train.guarding.guard import Guard

        self.splits = True
        asked = options.pop("max_micro_batch_size", None)
        sizes = [size for size in (asked, self._micro_batch) if size is not None]
        # Sizes are not remembered across trials: a trial's cap is its own, and the estimate knows more.
        options.setdefault("cache_sizes", False)
        guard = Guard(model, optimizer, max_micro_batch_size=min(sizes, default=None), **options)
        self._guards.append(weakref.ref(guard))
        return guard

    def report(self, *, checkpoint: Any = None, **metrics: Any) -> None:
        """Say how far the training is: `trial.report(loss=0.3, accuracy=0.9, checkpoint=model.state_dict())`.

        `checkpoint`: what `torch.save` can save, or the path of a file or folder. Ends the trial here if it is to end.
        """
        self.step += 1
        told = Reported(
            step=self.step,
            metrics={name: _number(name, value) for name, value in metrics.items()},
            checkpoint=self._kept(checkpoint) if self.rank == 0 else None,
            actual_bytes=reserved_peak(),
            ooms=out_of_memory_count(),
            micro_batch=self._smallest_micro_batch(),
        )
        if self.channel.report(told) is not Action.GO_ON:
            raise StopTrial

    def load_checkpoint(self, **options: Any) -> Any:
        """What `report(checkpoint=...)` was given, read with `torch.load`; None at a fresh start."""
        if self.checkpoint is None:
            return None
        import torch

        return torch.load(self.checkpoint, **{"map_location": self.device, **options})

    def _kept(self, checkpoint: Any) -> str | None:
        """The checkpoint as a file or folder of the trial's, written beside and moved into place."""
        if checkpoint is None:
            return None
        self.folder.mkdir(parents=True, exist_ok=True)
        write: Callable[[Any, Path], object]
        if isinstance(checkpoint, str | os.PathLike):
            source = Path(checkpoint)
            if not source.exists():
                raise UsageError(
                    f"report(checkpoint=...) was given '{source}', which is not there: save it first"
                )
            target = self.folder / f"checkpoint-{self.step}{source.suffix}"
            write = shutil.copytree if source.is_dir() else shutil.copy2
            checkpoint = source
        else:
            import torch

            write = torch.save
            target = self.folder / f"checkpoint-{self.step}.pt"
        partial = target.with_name(f".{target.name}")
        with _told_if_full(partial):
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
def _told_if_full(partial: Path) -> Iterator[None]:
    """What could not be written for want of room is taken away again, and said: torch's own error does not tell."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        is_full = getattr(error, "errno", None) == errno.ENOSPC
        is_full = is_full or shutil.disk_usage(partial.parent).free < TOO_LITTLE
        remove(partial)
        if not is_full:
            raise
        raise DiskFull(f"its checkpoint cannot be written to {partial.parent}: the disk is full") from None


def remove(path: Path) -> None:
    """Take a checkpoint away, a file or a folder."""
    with contextlib.suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def reserved_peak() -> int | None:
    """The highest that PyTorch reserved of the GPU in this process; None where none was used."""
    cuda = _cuda_in_use()
    return None if cuda is None else int(cuda.max_memory_reserved())


def out_of_memory_count() -> int:
    """How often an allocation failed in this process, whoever survived it."""
    cuda = _cuda_in_use()
    return 0 if cuda is None else int(cuda.memory_stats().get("num_ooms", 0))


def _cuda_in_use() -> Any:
    torch = sys.modules.get("torch")
    used = torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized()
    return torch.cuda if used and torch is not None else None


def _number(name: str, value: Any) -> float:
    if isinstance(value, Mapping | str | bytes):
        raise UsageError(f"report({name}=...) needs a number, not a {type(value).__name__}")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UsageError(f"report({name}=...) needs a number, not a {type(value).__name__}") from None
    except OverflowError:
        return math.inf
