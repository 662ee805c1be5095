"""Resumes a plain DataLoader in the middle of an epoch, at the batch after the last used batch.

A StatefulDataLoader from torchdata can resume itself and is tracked unchanged. For other loaders, this module tracks
the position without torchdata.

Random generators determine the order of the samples when an epoch starts, so their states are saved at that time. A
resumed run restores these states, starts the epoch again and skips the used batches. After the skipped batches, the run
restores the generator states from the time of the save. Without worker processes, the skipped samples are not read.
With workers, the skipped samples are read, because augmentation in a worker depends on earlier random draws.

`set_epoch` is called on samplers that have this method (DistributedSampler). If the number of ranks or the batch size
has changed, the position is counted in samples instead of batches. Two cases are not reproduced exactly: persistent
workers (`persistent_workers=True`) that draw random numbers, and samplers that draw from torch's global generator
during an epoch.
"""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader

from legroom.errors import UsageError
from legroom.log import log
from legroom.train.checkpoints.random_states import (
    generator_states,
    random_states,
    restore_random_states,
)


class ResumableLoader:
    """Wraps a loader and tracks its position in the epoch. All other attributes are read from the wrapped loader."""

    def __init__(self, loader: "DataLoader[Any]") -> None:
        if not hasattr(loader, "__iter__"):
            raise UsageError(f"checkpoints.loader() expects an iterable loader, not {type(loader).__name__}.")
        self.inner = loader
        self.epoch = 0
        self._batches = 0
        self._start: dict[str, Any] | None = None
        self._resume_state: Mapping[str, Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        resume_state, self._resume_state = self._resume_state, None
        set_epoch = getattr(getattr(self.inner, "sampler", None), "set_epoch", None)
        if set_epoch is not None:
            set_epoch(self.epoch)
        if resume_state is None:
            self._batches, self._start = 0, self._generator_states()
            batches: Iterator[Any] = iter(self.inner)
        else:
            batches = self._resumed(resume_state)
        for batch in batches:
            self._batches += 1
            yield batch
        self.end_epoch()

    def epochs(self, total: int) -> Iterator[int]:
        """Iterate over the remaining epochs, as in `for epoch in loader.epochs(10)`. Leaving the inner loop early
        ends the epoch."""
        while self.epoch < total:
            epoch = self.epoch
            yield epoch
            if self.epoch == epoch:
                self.end_epoch()

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def end_epoch(self) -> None:
        """End the epoch. Call this method only to save a checkpoint directly after a loop that was left early."""
        self.epoch += 1
        self._batches, self._start = 0, None

    # ------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "batches": self._batches,
            "samples_per_batch": _samples_per_batch(self.inner),
            "start": self._start,
            "generators": generator_states(_generators(self.inner)),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not {"epoch", "batches", "start", "generators"} <= set(state):
            raise UsageError("The argument is not the state of a loader. Pass the result of state_dict().")
        self.epoch, self._batches = int(state["epoch"]), 0
        self._resume_state = state if state["batches"] else None
        for generator, saved in zip(_generators(self.inner), state["generators"], strict=False):
            generator.set_state(saved)

    def _resumed(self, state: Mapping[str, Any]) -> Iterator[Any]:
        current = self._generator_states()
        self._restore(state["start"])
        self._start = self._generator_states()
        batches = iter(self.inner)
        self._batches = self._position(state)
        _skip(batches, self._batches)
        self._restore(current)
        return batches

    def _position(self, state: Mapping[str, Any]) -> int:
        batches, saved_size = int(state["batches"]), state["samples_per_batch"]
        size = _samples_per_batch(self.inner)
        if saved_size is None or size is None or saved_size == size:
            return batches
        position, repeated = divmod(batches * int(saved_size), size)
        if repeated:
            log.warning(
                "The checkpoint was saved after %d samples of epoch %d. The epoch resumes after %d samples, a multiple of "
                "the current global batch size (%d), so some samples are used again.",
                batches * saved_size,
                self.epoch,
                position * size,
                size,
            )
        return position

    def _generator_states(self) -> dict[str, Any]:
        return {"random": random_states(), "generators": generator_states(_generators(self.inner))}

    def _restore(self, state: Mapping[str, Any]) -> None:
        restore_random_states(state["random"])
        for generator, saved in zip(_generators(self.inner), state["generators"], strict=False):
            generator.set_state(saved)


def _skip(batches: Iterator[Any], count: int) -> None:
    """Skip `count` batches. Without workers, a private method of torch's iterator draws only the indices. If torch
    lacks this method, the samples are read too, which is slower but gives the same result.
    """
    next_index = getattr(batches, "_next_index", None)
    has_no_workers = type(batches).__name__ == "_SingleProcessDataLoaderIter"
    if not has_no_workers or _is_iterable_style(batches):
        next_index = None
    for _ in range(count):
        try:
            next(batches) if next_index is None else next_index()
        except StopIteration:
            return


def _is_iterable_style(batches: Any) -> bool:
    from torch.utils.data import IterableDataset

    return isinstance(getattr(batches, "_dataset", None), IterableDataset)


def _generators(loader: Any) -> list[torch.Generator]:
    found: dict[int, torch.Generator] = {}
    for owner in (loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None),
                  getattr(getattr(loader, "batch_sampler", None), "sampler", None)):  # fmt: skip
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator):
            found[id(generator)] = generator
    return list(found.values())


def _samples_per_batch(loader: Any) -> int | None:
    size = getattr(loader, "batch_size", None) or getattr(
        getattr(loader, "batch_sampler", None), "batch_size", None
    )
    if size is None:
        return None
    return int(size) * int(getattr(getattr(loader, "sampler", None), "num_replicas", 1))


def is_stateful_dataloader(loader: Any) -> bool:
    """Return True if the loader is torchdata's StatefulDataLoader, whose state differs between ranks."""
    module = sys.modules.get("torchdata.stateful_dataloader")
    return module is not None and isinstance(loader, module.StatefulDataLoader)
