"""Checkpoints with the complete state of a training run. If the process is killed at any time, the last complete
checkpoint stays intact.

    checkpoints = legroom.Checkpoints("runs/digits", keep=3, best="val_loss")
    checkpoints.track(model=model, optimizer=optimizer, scheduler=scheduler, guard=guard)
    loader = checkpoints.loader(loader)             # tracks the position in the epoch
    step = checkpoints.resume()                     # 0 if there is no checkpoint

    for epoch in loader.epochs(10):
        for x, y in loader:
            loss = guard.step(loss_fn, x, y)
            step += 1
            if step % 500 == 0:
                checkpoints.save(step)
        checkpoints.save(step, val_loss=validate())

A resumed run on the CPU is bit-for-bit identical to an uninterrupted run. Checkpoints contain plain data and weights,
never a pickled model, and loading them runs no code from the file.

This file is the public interface. The module `saving` copies and writes the data, `reading` reads and checks it,
`catalog` lists the existing checkpoints, and `unfinished_folder` makes a write atomic.
"""

import difflib
import numbers
import os
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from legroom.arguments import check_count, check_path
from legroom.errors import CheckpointError, UsageError
from legroom.log import log
from legroom.train.checkpoints import catalog, reading, saving
from legroom.train.checkpoints.catalog import CheckpointInfo
from legroom.train.checkpoints.files.host_buffers import HostBuffers
from legroom.train.checkpoints.files.unfinished_folder import remove_folder
from legroom.train.checkpoints.key_check import closest_name
from legroom.train.checkpoints.loader_position import ResumableLoader
from legroom.train.checkpoints.plain_state import not_plain_error
from legroom.train.checkpoints.process_group import CheckpointGroup, SaveCalls, is_distributed, is_main_rank
from legroom.train.checkpoints.unwrapped_modules import check_module, load_module, module_state, shapes


class Checkpoints:
    """The checkpoints of one training run, in one folder.

    `keep` is the number of newest checkpoints to keep, or None to keep all checkpoints. `best` is the name of a metric
    that is passed to `save`. The `keep_best` checkpoints with the lowest values of this metric are also kept. If
    `higher_is_better` is set, the checkpoints with the highest values are kept instead. With `background`, `save`
    returns as soon as all data has been copied, and a thread writes the files.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep: int | None = 3,
        best: str | None = None,
        keep_best: int = 1,
        higher_is_better: bool = False,
        background: bool = False,
    ) -> None:
        if keep is not None:
            check_count("keep", keep, otherwise="None to keep all checkpoints")
        check_count("keep_best", keep_best)
        self.folder = check_path("folder", folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise UsageError(f"{self.folder} is a file. Pass a folder for the checkpoints.")
        self._keep, self._metric, self._keep_best = keep, best, keep_best
        self._higher_is_better = higher_is_better
        self._parts: dict[str, Any] = {}
        self._buffers: dict[str, HostBuffers] = {}
        self._writer = _BackgroundWriter() if background else None
        self._current_group: CheckpointGroup | None = None
        self._save_calls: SaveCalls | None = None

    # ------------------------------------------------------------ tracked objects

    def track(self, **parts: Any) -> None:
        """Track objects. Each object is saved and restored under the name of its keyword argument. The objects may be
        models, optimizers, schedulers, GradScalers, a Guard, or any object with `state_dict()` and
        `load_state_dict()`."""
        for name, part in parts.items():
            if isinstance(part, DataLoader) and not hasattr(part, "state_dict"):
                raise UsageError(
                    f"{name} is a DataLoader, which has no state. "
                    f"Use `{name} = checkpoints.loader({name})`, and iterate over the result."
                )
            if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                raise UsageError(
                    f"{name} ({type(part).__name__}) cannot be tracked, because it does not have both state_dict() and "
                    "load_state_dict(). Add the missing methods, or do not track this object."
                )
            self._parts[name] = part

    def loader(self, loader: Any, name: str = "loader") -> Any:
        """Return a loader that saves and resumes its position in the epoch.

        A loader with its own `state_dict()`, such as torchdata's StatefulDataLoader, is tracked unchanged.
        """
        if not (hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")):
            loader = ResumableLoader(loader)
        self.track(**{name: loader})
        return loader

    # ------------------------------------------------------------ saving

    def save(self, step: int, **metrics: float) -> None:
        """Save all tracked objects, then remove old checkpoints according to `keep` and `best`.

        With several ranks, call `save` on every rank. If only rank 0 calls `save`, the checkpoint contains only the
        random states and loader position of rank 0, and rank 0 must have all weights.
        """
        if not self._parts:
            raise UsageError(
                "No objects are tracked. Call checkpoints.track(model=model, optimizer=optimizer) first."
            )
        values = _checked_metrics(step, metrics)
        if self._metric is not None and self._metric not in values:
            similar = difflib.get_close_matches(self._metric, list(values), n=1, cutoff=0.8)
            if similar:
                raise UsageError(
                    f"save() received the metric {similar[0]}, but the best checkpoint is selected by {self._metric}. Use the "
                    f"same name: save(step, {self._metric}=...)."
                )
        self.wait()
        group = self._group_of_save(step)
        if group is None:
            return
        later = self._writer is not None
        sharded = saving.is_sharded_over_ranks(self._parts, group)
        contents = group.run(
            lambda: saving.copy_contents(
                self._parts, group, self._buffers_of, sharded=sharded, written_later=later
            )
        )

        def write() -> None:
            saving.write(contents, self.folder, group, step=step, metrics=values)
            if group.is_main:
                self._remove_old()

        if self._writer is None:
            write()
        else:
            self._writer.start(write)

    def wait(self) -> None:
        """Wait for a checkpoint that is being written in the background. If writing failed, raise the error."""
        if self._writer is not None:
            self._writer.wait()

    def close(self) -> None:
        """Wait until the background thread has finished, and free the host memory that is used for copies."""
        if self._writer is not None:
            self._writer.close()
            self._writer = _BackgroundWriter()
        self._buffers.clear()

    # ------------------------------------------------------------ resuming

    def resume(self, which: str | os.PathLike[str] = "last", *, strict: bool = True) -> int:
        """Restore all tracked objects from the "last" or "best" checkpoint, or from the checkpoint with a given name or path.

        Return the step of the checkpoint, or 0 if there is no checkpoint yet. If the last checkpoint is damaged, it is
        skipped with a warning. With `strict=False`, objects that the checkpoint does not contain keep their initial
        state.
        """
        self.wait()
        group = self._group()
        candidates = self._candidates(which, group)
        for number, info in enumerate(candidates):
            parts = self._parts if strict else {n: p for n, p in self._parts.items() if n in info.parts}
            try:
                contents = reading.read(info, parts, group)
            except CheckpointError as error:
                if which != "last" or number + 1 == len(candidates):
                    raise
                if group.is_main:
                    log.warning("%s Resuming from the previous checkpoint.", catalog.without_advice(error))
                continue
            reading.check(contents, parts, group)
            reading.load(contents, parts, group)
            return info.step
        return 0

    def load_weights(
        self,
        model: nn.Module,
        which: str | os.PathLike[str] | None = None,
        *,
        name: str = "model",
        strict: bool = True,
    ) -> None:
        """Load only the weights of one model, to evaluate the model or to start another training run.

        By default, load the best checkpoint if there is one, and otherwise the last checkpoint. A message shows which
        checkpoint is loaded. With `strict=False`, load the weights whose name and shape match, and log a warning that
        lists the other weights.
        """
        self.wait()
        group = CheckpointGroup(alone=True) if saving.has_all_tensors(model) else self._group()
        default = "last" if self.best is None else "best"
        candidates = self._candidates(which or default, group)
        if not candidates:
            raise CheckpointError(f"{self.folder} contains no checkpoint yet.")
        info = candidates[0]
        if which is None and is_main_rank():
            log.warning("Loading weights from the %s checkpoint (%s).", default, info.path)
        if name not in info.modules:
            raise CheckpointError(
                f"{info.path} contains no model named '{name}'. Models in this checkpoint: {', '.join(info.modules) or 'none'}."
            )
        weights = reading.read(info, {name: model}, group).modules[name]
        if strict:
            check_module(weights, shapes(module_state(model)), str(info.path))
        skipped = load_module(model, weights, strict=strict)
        if skipped and group.is_main:
            log.warning(
                "Tensors not loaded from %s: %d of %d (%s%s)",
                info.path,
                len(skipped),
                len(module_state(model)),
                ", ".join(skipped[:5]),
                ", ..." if len(skipped) > 5 else "",
            )

    # ------------------------------------------------------------ existing checkpoints

    @property
    def saved(self) -> list[CheckpointInfo]:
        """All checkpoints in the folder, newest first."""
        return catalog.list_checkpoints(self.folder)

    @property
    def last(self) -> CheckpointInfo | None:
        """The newest checkpoint."""
        return next(iter(self.saved), None)

    @property
    def best(self) -> CheckpointInfo | None:
        """The checkpoint with the best value of the metric, or None if no checkpoint has the metric."""
        return next(iter(self._best_checkpoints()), None)

    def _best_checkpoints(self) -> list[CheckpointInfo]:
        if self._metric is None:
            return []
        return catalog.best_checkpoints(self.saved, self._metric, higher=self._higher_is_better)

    # ------------------------------------------------------------ internals

    def _candidates(self, which: str | os.PathLike[str], group: CheckpointGroup) -> list[CheckpointInfo]:
        return group.gather(lambda: self._find(which) if group.is_main else [])[0]

    def _find(self, which: str | os.PathLike[str]) -> list[CheckpointInfo]:
        if which == "last":
            problems: list[str] = []
            found = catalog.list_checkpoints(self.folder, problems)
            for problem in problems:
                log.warning("%s Skipping this checkpoint.", problem)
            return found
        if which == "best":
            if self._metric is None:
                raise UsageError(
                    'No metric is set for selecting the best checkpoint. Use Checkpoints(folder, best="val_loss").'
                )
            if self.best is None:
                raise CheckpointError(
                    f"No checkpoint in {self.folder} has the metric '{self._metric}'. Pass the metric when "
                    f"saving: save(step, {self._metric}=...)."
                )
            return [self.best]
        path = Path(which) if Path(which).is_absolute() else self.folder / which
        if not path.is_dir():
            closest = closest_name(path.name, [info.path.name for info in self.saved])
            raise CheckpointError(
                f"There is no checkpoint {path}." + (f" Did you mean {closest}?" if closest else "")
            )
        return [catalog.read_manifest(path)]

    def _remove_old(self) -> None:
        best = self._best_checkpoints()[: self._keep_best]
        for info in catalog.removable(self.saved, self._keep, best):
            try:
                remove_folder(info.path)
            except OSError as error:  # the new checkpoint is complete, so the training can continue
                log.warning("Could not remove %s: %s.", info.path, error.strerror)

    def _buffers_of(self, file: str) -> HostBuffers:
        return self._buffers.setdefault(file, HostBuffers())

    def _group_of_save(self, step: int) -> CheckpointGroup | None:
        """Return the group of ranks that save this step. Return None if only rank 0 saves the step and this
        process is another rank.
        """
        if not is_distributed():
            return self._group()
        if self._save_calls is None:
            self._save_calls = SaveCalls(self.folder)
        has_all_state = all(saving.has_all_tensors(part) for part in self._parts.values())
        together = self._save_calls.all_ranks(step, has_all_state=has_all_state)
        if together is None:
            return None
        return self._group() if together else CheckpointGroup(alone=True)

    def _group(self) -> CheckpointGroup:
        if self._current_group is None or not self._current_group.is_current():
            self._current_group = CheckpointGroup()
        return self._current_group


class _BackgroundWriter:
    """A thread that writes one checkpoint at a time. If a write fails, the next call of `start`, `wait` or `close`
    raises the error. If no call follows a failed write, the error is logged when the program exits.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="legroom-checkpoint")
        self._pending: list[Future[None]] = []
        # Runs at the exit of the program or when the owner is freed, so that a failure is always reported.
        self._finalize = weakref.finalize(self, _finish_writing, self._pool, self._pending)

    def start(self, work: Callable[[], None]) -> None:
        self.wait()
        self._pending.append(self._pool.submit(work))

    def wait(self) -> None:
        if self._pending:
            self._pending.pop().result()

    def close(self) -> None:
        try:
            self.wait()
        finally:
            self._finalize()


def _finish_writing(pool: ThreadPoolExecutor, pending: "list[Future[None]]") -> None:
    pool.shutdown(wait=True)
    for future in pending:
        error = future.exception()
        if error is not None:
            log.error("The last checkpoint was not written: %s", error)
    pending.clear()


def _checked_metrics(step: int, metrics: Mapping[str, Any]) -> dict[str, float]:
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise UsageError(
            "The first argument of save() must be the step, a non-negative integer. Example: "
            "checkpoints.save(step, val_loss=...)."
        )
    values = {}
    for name, value in metrics.items():
        if isinstance(value, nn.Module):
            raise not_plain_error(value, name)
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            value = value.item()
        elif not isinstance(value, numbers.Real):
            raise UsageError(
                f"Checkpoint metrics must be single numbers, but the type of {name} is {type(value).__name__}."
            )
        values[name] = float(value)
    return values
