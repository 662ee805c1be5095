"""The batches of a run: each global batch is divided among the ranks by their shares, every row exactly once.

    loader = run.loader(dataset, batch_size=64)     # 64 rows in a step, over all ranks
    for x, y in loader:                             # this rank's rows of them, on its device

Other samplers repeat rows so that all ranks have as many, which is another training than one process would do. Here the last batch is
divided as it is; a rank that gets none of its rows goes along with one row that weighs nothing. Which rows make up a batch depends
on the seed and the epoch alone, not on the number of ranks: a run may go on with another number, at the same batch.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from legroom.errors import UsageError
from legroom.gpus.machine import processors
from legroom.scale.shares import divided
from legroom.train.guarding.batches.splitting import to_device

MOST_WORKERS = 8


class Loader:
    """Batches of one dataset. Each `for` over it is one epoch; `set_epoch` chooses another."""

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        *,
        place: int,
        shares: Sequence[float],
        device: torch.device | None,
        local_ranks: int,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
        workers: int | None = None,
        pin_memory: bool | None = None,
        on_batch: Callable[[bool], None] = lambda counts: None,
        **options: Any,
    ) -> None:
        """`place`: which of the `shares` is ours. `device`: where batches go, None to leave them on the host.
        `on_batch` hears of every batch whether its rows count."""
        self._rows = _rows_of(dataset)
        _check(batch_size, shares, options)
        self._batch_size, self._place, self._shares, self._device = batch_size, place, shares, device
        self._shuffle, self._drop_last, self._seed = shuffle, drop_last, seed
        self._on_batch = on_batch
        self._epoch = self._batches = 0
        self._draws = torch.Generator()
        workers = workers_per_rank(dataset, local_ranks) if workers is None else workers
        self._loader = DataLoader(
            dataset,
            batch_sampler=_Batches(self),
            num_workers=workers,
            pin_memory=torch.cuda.is_available() if pin_memory is None else pin_memory,
            generator=self._draws,
            persistent_workers=options.pop("persistent_workers", workers > 0),
            **options,
        )

    def __len__(self) -> int:
        whole, rest = divmod(self._rows, self._batch_size)
        return whole + bool(rest and not self._drop_last)

    def __iter__(self) -> Iterator[Any]:
        self._draws.manual_seed(_mixed(self._seed, self._epoch, self._place))
        for batch in self._loader:
            self._on_batch(bool(self._mine(self._batches)))
            self._batches += 1
            yield batch if self._device is None else to_device(batch, self._device, non_blocking=True)
        self._epoch, self._batches = self._epoch + 1, 0

    @property
    def epoch(self) -> int:
        """The one that is under way, or to begin."""
        return self._epoch

    def epochs(self, total: int) -> Iterator[int]:
        """The numbers of the epochs that are left of `total`: `for epoch in loader.epochs(10): for x, y in loader: ...`."""
        while self._epoch < total:
            now = self._epoch
            yield now
            if self._epoch == now:  # its batches were not all taken
                self.set_epoch(now + 1)

    def set_epoch(self, epoch: int) -> None:
        """The next `for` is this epoch, from its beginning."""
        self._epoch, self._batches = epoch, 0

    def state_dict(self) -> dict[str, int]:
        """Where the run stands, in batches of the whole run: the same on every rank."""
        return {"epoch": self._epoch, "batches": self._batches, "seed": self._seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """The next `for` goes on after the batches that were given out, without drawing them."""
        self._epoch, self._batches, self._seed = state["epoch"], state["batches"], state["seed"]

    def rows_to_come(self) -> Iterator[list[int]]:
        """This rank's rows of every batch that is left of the epoch; one row that weighs nothing where it has none."""
        order = self._order()
        for number in range(self._batches, len(self)):
            start = number * self._batch_size
            counts = self._counts(number)
            before = sum(counts[: self._place])
            mine = order[start + before : start + before + counts[self._place]]
            yield mine or order[start : start + 1]

    def _order(self) -> list[int]:
        if not self._shuffle:
            return list(range(self._rows))
        draws = torch.Generator().manual_seed(_mixed(self._seed, self._epoch))
        return torch.randperm(self._rows, generator=draws).tolist()

    def _counts(self, number: int) -> list[int]:
        rows = min(self._batch_size, self._rows - number * self._batch_size)
        return divided(rows, self._shares)

    def _mine(self, number: int) -> int:
        return self._counts(number)[self._place]


class _Batches:
    """What a DataLoader asks for the rows of each batch."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[list[int]]:
        return self._loader.rows_to_come()

    def __len__(self) -> int:
        return len(self._loader)


def workers_per_rank(dataset: Dataset[Any], local_ranks: int) -> int:
    """Processors of this machine, divided among its ranks. None for tensors in memory, or where each rank has one processor."""
    if isinstance(dataset, TensorDataset):
        return 0
    each = processors() // local_ranks
    return 0 if each < 2 else min(each, MOST_WORKERS)


def _rows_of(dataset: Any) -> int:
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise UsageError(
            f"{type(dataset).__name__} gives rows one after the other, so they cannot be divided among ranks: give a dataset with "
            "len() and [], or divide the stream yourself by run.rank and run.size"
        )
    try:
        rows = len(dataset)
    except TypeError:
        raise UsageError(
            f"{type(dataset).__name__} does not say how many rows it has: give it a __len__"
        ) from None
    if rows == 0:
        raise UsageError("the dataset is empty: there is nothing to train on")
    return rows


def _check(batch_size: int, shares: Sequence[float], options: dict[str, Any]) -> None:
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise UsageError(f"batch_size={batch_size} is no number of rows")
    working = sum(share > 0 for share in shares)
    if batch_size < working:
        raise UsageError(
            f"batch_size={batch_size} is less than one row for each of {working} ranks: it counts the rows of all ranks together"
        )
    for name in ("sampler", "batch_sampler", "generator"):
        if name in options:
            raise UsageError(
                f"{name}= is chosen here, so that every row comes once over all ranks: leave it out"
            )


def _mixed(*numbers: int) -> int:
    """One seed from several: neighbours must not give neighbours."""
    return zlib.crc32(repr(numbers).encode())
