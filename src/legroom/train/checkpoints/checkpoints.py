"""All that a training needs to go on, in one folder; a kill at any moment leaves the last good checkpoint.

    checkpoints = legroom.Checkpoints("runs/digits", keep=3, best="val_loss")
    checkpoints.track(model=model, optimizer=optimizer, scheduler=scheduler, guard=guard)
    loader = checkpoints.loader(loader)             # knows its place in the epoch
    step = checkpoints.resume()                     # 0 if there is nothing to resume

    for epoch in loader.epochs(10):
        for x, y in loader:
            loss = guard.step(loss_fn, x, y)
            step += 1
            if step % 500 == 0:
                checkpoints.save(step)
        checkpoints.save(step, val_loss=validate())

A resumed run on the CPU continues bit for bit. What is saved is plain data and weights, never a pickled model; what is
read runs no code of the file's.

This file is what people call. What is copied and written is in `saving`, what is read and checked in `reading`, which
checkpoints there are in `catalog`, how a write is all or nothing in `unfinished_folder`.
"""

import numbers
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from legroom.errors import CheckpointError, UsageError
from legroom.log import log
from legroom.train.checkpoints import catalog, reading, saving
from legroom.train.checkpoints.catalog import Saved
from legroom.train.checkpoints.files.background import Background
from legroom.train.checkpoints.files.host_copies import Slabs
from legroom.train.checkpoints.files.unfinished_folder import remove_folder
from legroom.train.checkpoints.key_check import nearest
from legroom.train.checkpoints.loader_position import PlacedLoader
from legroom.train.checkpoints.plain_state import refused
from legroom.train.checkpoints.process_group import Crew
from legroom.train.checkpoints.unwrapped_modules import check_module, load_module, module_state, shapes


class Checkpoints:
    """The checkpoints of one training, in one folder.

    `keep`: how many of the newest stay (None: all). `best`: a figure given to `save`; the checkpoint with the lowest, or with
    `higher_is_better` the highest, stays as well. `background`: `save` returns when everything is copied, and a thread writes.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep: int | None = 3,
        best: str | None = None,
        higher_is_better: bool = False,
        background: bool = False,
    ) -> None:
        if keep is not None and keep < 1:
            raise UsageError(f"keep={keep} would keep no checkpoint: give 1 or more, or None for all")
        self.folder = Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise UsageError(f"{self.folder} is a file: give a folder for the checkpoints")
        self._keep, self._metric, self._higher = keep, best, higher_is_better
        self._parts: dict[str, Any] = {}
        self._slabs: dict[str, Slabs] = {}
        self._background = Background() if background else None
        self._crew_now: Crew | None = None

    # ------------------------------------------------------------ what belongs to the training

    def track(self, **parts: Any) -> None:
        """What is saved and resumed, by name: models, optimizers, schedulers, scalers, a Guard, anything that has
        `state_dict()` and `load_state_dict()`."""
        for name, part in parts.items():
            if isinstance(part, DataLoader):
                raise UsageError(
                    f"{name} is a DataLoader, which does not know its place: write {name} = checkpoints.loader({name}) and iterate over that"
                )
            if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                raise UsageError(
                    f"{name} is a {type(part).__name__}, which has no state_dict() and load_state_dict(): give it both, or leave it out"
                )
            self._parts[name] = part

    def loader(self, loader: Any, name: str = "loader") -> Any:
        """The loader, with its place in the epoch saved and resumed. One that can tell its place by itself is only tracked."""
        if not (hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")):
            loader = PlacedLoader(loader)
        self.track(**{name: loader})
        return loader

    # ------------------------------------------------------------ saving

    def save(self, step: int, **metrics: float) -> None:
        """A checkpoint of everything tracked, as it is now. The ones that need not be kept go afterwards."""
        if not self._parts:
            raise UsageError(
                "nothing is tracked: call checkpoints.track(model=model, optimizer=optimizer) first"
            )
        figures = _figures(step, metrics)
        self.wait()
        crew = self._crew()
        later = self._background is not None
        spread = saving.is_spread(self._parts, crew)
        contents = crew.each(
            lambda: saving.copied(self._parts, crew, self._slabs_of, spread=spread, later=later)
        )

        def write() -> None:
            saving.write(contents, self.folder, crew, step=step, metrics=figures)
            if crew.main:
                self._remove_superfluous()

        if self._background is None:
            write()
        else:
            self._background.start(write)

    def wait(self) -> None:
        """Until a checkpoint that is being written in the background is there; raises what failed in that."""
        if self._background is not None:
            self._background.wait()

    def close(self) -> None:
        """Wait, and give back the memory for copies."""
        if self._background is not None:
            self._background.close()
            self._background = Background()
        self._slabs.clear()

    # ------------------------------------------------------------ resuming

    def resume(self, which: str | os.PathLike[str] = "last", *, strict: bool = True) -> int:
        """Everything tracked as it was in the "last" checkpoint, the "best", or one by name or path; the step to go on from.

        0 if there is none yet. A damaged last one is passed over with a warning. `strict=False`: what a checkpoint
        lacks starts anew.
        """
        self.wait()
        crew = self._crew()
        candidates = self._candidates(which, crew)
        for number, saved in enumerate(candidates):
            parts = self._parts if strict else {n: p for n, p in self._parts.items() if n in saved.parts}
            try:
                contents = reading.read(saved, parts, crew)
            except CheckpointError as error:
                if which != "last" or number + 1 == len(candidates):
                    raise
                if crew.main:
                    log.warning("%s. Going on from the one before it.", str(error).partition(". Resume")[0])
                continue
            reading.check(contents, parts, crew)
            reading.load(contents, parts, crew)
            return saved.step
        return 0

    def load_weights(
        self,
        model: nn.Module,
        which: str | os.PathLike[str] = "best",
        *,
        name: str = "model",
        strict: bool = True,
    ) -> None:
        """One model's weights alone, to evaluate or to start another training from; nothing else changes.

        `strict=False`: what fits by name and shape is loaded, and the rest is named in a warning.
        """
        self.wait()
        crew = self._crew()
        candidates = self._candidates(which, crew)
        if not candidates:
            raise CheckpointError(f"there is no checkpoint in {self.folder} yet")
        saved = candidates[0]
        if name not in saved.modules:
            raise CheckpointError(
                f"{saved.path} holds no model called '{name}': it holds {', '.join(saved.modules) or 'none'}"
            )
        weights = reading.read(saved, {name: model}, crew).modules[name]
        if strict:
            check_module(weights, shapes(module_state(model)), str(saved.path))
        left = load_module(model, weights, strict=strict)
        if left and crew.main:
            log.warning(
                "%d of %d tensors were not loaded from %s: %s", len(left), len(module_state(model)), saved.path, ", ".join(left[:5])
            )  # fmt: skip

    # ------------------------------------------------------------ what there is

    @property
    def saved(self) -> list[Saved]:
        """Every checkpoint in the folder, the newest first."""
        return catalog.all_saved(self.folder)

    @property
    def last(self) -> Saved | None:
        return next(iter(self.saved), None)

    @property
    def best(self) -> Saved | None:
        """The one with the best figure; None if no checkpoint has it."""
        if self._metric is None:
            return None
        return catalog.best_of(self.saved, self._metric, higher=self._higher)

    # ------------------------------------------------------------ inside

    def _candidates(self, which: str | os.PathLike[str], crew: Crew) -> list[Saved]:
        """What `which` means, the first choice first: the same on all ranks."""
        return crew.together(lambda: self._meant(which) if crew.main else [])[0]

    def _meant(self, which: str | os.PathLike[str]) -> list[Saved]:
        if which == "last":
            passed_over: list[str] = []
            found = catalog.all_saved(self.folder, passed_over)
            for reason in passed_over:
                log.warning("%s. It is passed over.", reason)
            return found
        if which == "best":
            if self._metric is None:
                raise UsageError('which figure is best? Give it: Checkpoints(folder, best="val_loss")')
            if self.best is None:
                raise CheckpointError(
                    f"no checkpoint in {self.folder} has the figure '{self._metric}': give it when saving, save(step, {self._metric}=...)"
                )
            return [self.best]
        path = Path(which) if Path(which).is_absolute() else self.folder / which
        if not path.is_dir():
            near = nearest(path.name, [saved.path.name for saved in self.saved])
            raise CheckpointError(
                f"there is no checkpoint {path}" + (f": did you mean {near}?" if near else "")
            )
        return [catalog.read_manifest(path)]

    def _remove_superfluous(self) -> None:
        for saved in catalog.superfluous(self.saved, self._keep, self.best):
            try:
                remove_folder(saved.path)
            except (
                OSError
            ) as error:  # the new one is safe; an old one too many is no reason to end a training
                log.warning("%s could not be removed: %s", saved.path, error.strerror)

    def _slabs_of(self, file: str) -> Slabs:
        return self._slabs.setdefault(file, Slabs())

    def _crew(self) -> Crew:
        if self._crew_now is None or not self._crew_now.is_current():
            self._crew_now = Crew()
        return self._crew_now


def _figures(step: int, metrics: Mapping[str, Any]) -> dict[str, float]:
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise UsageError(
            "save() wants the step first, a number from 0 on: checkpoints.save(step, val_loss=...)"
        )
    figures = {}
    for name, value in metrics.items():
        if isinstance(value, nn.Module):
            raise refused(value, name)
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            value = value.item()
        elif not isinstance(value, numbers.Real):
            raise UsageError(
                f"{name} is a {type(value).__name__}: figures of a checkpoint are single numbers"
            )
        figures[name] = float(value)
    return figures
