"""A DataLoader that knows its place: a checkpoint in the middle of an epoch is resumed with the very next batch.

The order of an epoch comes from generators at its beginning. So these are written down there; a resumed run puts them
back, begins the epoch again, passes over the batches that were drawn, and puts the generators where they were at the
checkpoint. Without worker processes the rows that are passed over are not even read. With workers they are:
augmentation in a worker depends on what it drew before.

Samplers with `set_epoch` (DistributedSampler) are told the epoch. With another number of ranks or another batch size,
the place is counted in rows. Not repeated exactly: workers kept alive between epochs (`persistent_workers`) that draw
random numbers, and samplers that draw from torch's global generator in the middle of an epoch.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader

from legroom.errors import UsageError
from legroom.log import log
from legroom.train.checkpoints.random_numbers import (
    generator_states,
    random_numbers,
    restore_random_numbers,
)


class PlacedLoader:
    """Iterates like the loader it is given. Everything else is the loader's."""

    def __init__(self, loader: "DataLoader[Any]") -> None:
        if not hasattr(loader, "__iter__"):
            raise UsageError(f"a loader is something to iterate over, not a {type(loader).__name__}")
        self.inner = loader
        self.epoch = 0
        """The epoch to begin, or to go on with."""
        self._drawn = 0
        self._start: dict[str, Any] | None = None
        """The generators at the beginning of the epoch that is under way."""
        self._resuming: Mapping[str, Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        resuming, self._resuming = self._resuming, None
        set_epoch = getattr(getattr(self.inner, "sampler", None), "set_epoch", None)
        if set_epoch is not None:
            set_epoch(self.epoch)
        if resuming is None:
            self._drawn, self._start = 0, self._generators()
            batches: Iterator[Any] = iter(self.inner)
        else:
            batches = self._begun_again(resuming)
        for batch in batches:
            self._drawn += 1
            yield batch
        self.end_epoch()

    def epochs(self, total: int) -> Iterator[int]:
        """The epochs that are left: `for epoch in loader.epochs(10)`. A loop over batches that was left early ends its epoch."""
        while self.epoch < total:
            now = self.epoch
            yield now
            if self.epoch == now:
                self.end_epoch()

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def end_epoch(self) -> None:
        """The epoch is over. For a checkpoint right after a loop that was left early; otherwise this happens by itself."""
        self.epoch += 1
        self._drawn, self._start = 0, None

    # ------------------------------------------------------------ what lasts

    def state_dict(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "drawn": self._drawn,
            "rows_per_batch": _rows_per_batch(self.inner),
            "start": self._start,
            "generators": generator_states(_generators(self.inner)),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not {"epoch", "drawn", "start", "generators"} <= set(state):
            raise UsageError("this is no state of a loader: give load_state_dict what state_dict() gave")
        self.epoch, self._drawn = int(state["epoch"]), 0
        self._resuming = state if state["drawn"] else None
        for generator, saved in zip(_generators(self.inner), state["generators"], strict=False):
            generator.set_state(saved)

    def _begun_again(self, state: Mapping[str, Any]) -> Iterator[Any]:
        now = self._generators()
        start = state["start"]
        self._restore(start)
        self._start = self._generators()
        batches = iter(self.inner)
        self._drawn = self._place(state)
        _pass_over(batches, self._drawn)
        self._restore(now)
        return batches

    def _place(self, state: Mapping[str, Any]) -> int:
        drawn, then, now = int(state["drawn"]), state["rows_per_batch"], _rows_per_batch(self.inner)
        if then is None or now is None or then == now:
            return drawn
        place, again = divmod(drawn * int(then), now)
        if again:
            log.warning(
                "The checkpoint was made after %d rows of epoch %d; batches are now of %d rows in all, so %d of these rows are seen again.",
                drawn * then, self.epoch, now, again,
            )  # fmt: skip
        return place

    def _generators(self) -> dict[str, Any]:
        return {"random": random_numbers(), "generators": generator_states(_generators(self.inner))}

    def _restore(self, state: Mapping[str, Any]) -> None:
        restore_random_numbers(state["random"])
        for generator, saved in zip(_generators(self.inner), state["generators"], strict=False):
            generator.set_state(saved)


def _pass_over(batches: Iterator[Any], count: int) -> None:
    """Draw `count` batches. A private method of torch's iterator without workers draws the rows' numbers alone.

    Where there is no such method the rows are read as well, which takes longer and is as right.
    """
    next_index = getattr(batches, "_next_index", None)
    reads_here = type(batches).__name__ == "_SingleProcessDataLoaderIter" and next_index is not None
    reads_here = reads_here and not _is_iterable_style(batches)
    for _ in range(count):
        try:
            next_index() if reads_here and next_index is not None else next(batches)
        except StopIteration:
            return


def _is_iterable_style(batches: Any) -> bool:
    from torch.utils.data import IterableDataset

    return isinstance(getattr(batches, "_dataset", None), IterableDataset)


def _generators(loader: Any) -> list[torch.Generator]:
    """Those that a loader and its samplers were given, each once."""
    found: dict[int, torch.Generator] = {}
    for owner in (loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None),
                  getattr(getattr(loader, "batch_sampler", None), "sampler", None)):  # fmt: skip
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator):
            found[id(generator)] = generator
    return list(found.values())


def _rows_per_batch(loader: Any) -> int | None:
    """Rows of one batch over all ranks; None where that is not known."""
    size = getattr(loader, "batch_size", None) or getattr(
        getattr(loader, "batch_sampler", None), "batch_size", None
    )
    if size is None:
        return None
    return int(size) * int(getattr(getattr(loader, "sampler", None), "num_replicas", 1))
