"""The loader of a run. Each global batch is split among the ranks by their shares, and every sample is used exactly
once.

    loader = run.loader(dataset, batch_size=64)     # 64 samples per step, across all ranks
    for x, y in loader:                             # this rank's samples, on its device

Other samplers repeat samples to give all ranks the same number of samples, so the training differs from training in one
process. This loader splits the last batch without padding, and a rank without samples uses one sample with weight 0.
The samples of a batch depend only on the seed and the epoch, not on the number of ranks. Therefore a run can resume at
the same batch with a different number of ranks.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from legroom.arguments import check_count
from legroom.errors import UsageError
from legroom.gpus.machine import processors
from legroom.scale.shares import split_by_shares
from legroom.train.guarding.batches.splitting import to_device

MAX_WORKERS = 8


class DistributedLoader:
    """Yields the batches of one dataset. Each iteration over the loader is one epoch. `set_epoch` selects another epoch."""

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        *,
        index: int,
        shares: Sequence[float],
        device: torch.device | None,
        local_ranks: int,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
        num_workers: int | None = None,
        pin_memory: bool | None = None,
        on_batch: Callable[[bool], None] = lambda is_counted: None,
        **options: Any,
    ) -> None:
        """Create a loader. `index` is the index of this rank's share. `device` is the device of batches, or None to
        keep batches on the CPU.

        `on_batch` is called before each batch, with False if the samples of the batch have weight 0.
        """
        self._length = _checked_length(dataset)
        _check(batch_size, shares, options)
        self._batch_size, self._index, self._shares, self._device = batch_size, index, shares, device
        self._shuffle, self._drop_last, self._seed = shuffle, drop_last, seed
        self._on_batch = on_batch
        self._epoch = self._batches = 0
        self._generator = torch.Generator()
        workers = workers_per_rank(dataset, local_ranks) if num_workers is None else num_workers
        self._loader = DataLoader(
            dataset,
            batch_sampler=_BatchSampler(self),
            num_workers=workers,
            pin_memory=torch.cuda.is_available() if pin_memory is None else pin_memory,
            generator=self._generator,
            persistent_workers=options.pop("persistent_workers", workers > 0),
            **options,
        )

    def __len__(self) -> int:
        full, rest = divmod(self._length, self._batch_size)
        return full + bool(rest and not self._drop_last)

    def __iter__(self) -> Iterator[Any]:
        self._generator.manual_seed(_combined_seed(self._seed, self._epoch, self._index))
        for batch in self._loader:
            self._on_batch(bool(self._counts(self._batches)[self._index]))
            self._batches += 1
            yield batch if self._device is None else to_device(batch, self._device, non_blocking=True)
        self._epoch, self._batches = self._epoch + 1, 0

    @property
    def epoch(self) -> int:
        return self._epoch

    def epochs(self, total: int) -> Iterator[int]:
        """Iterate over the remaining epochs, as in `for epoch in loader.epochs(10): for x, y in loader: ...`."""
        while self._epoch < total:
            epoch = self._epoch
            yield epoch
            if self._epoch == epoch:  # the inner loop ended early
                self.set_epoch(epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration over the loader start epoch `epoch`."""
        self._epoch, self._batches = epoch, 0

    def state_dict(self) -> dict[str, int]:
        """Return the epoch, the seed, and the number of global batches that were used in this epoch. The values are the
        same on every rank.
        """
        return {"epoch": self._epoch, "batches": self._batches, "seed": self._seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Resume after the batches that were already used. These batches are not read again."""
        self._epoch, self._batches, self._seed = state["epoch"], state["batches"], state["seed"]

    def remaining_batches(self) -> Iterator[list[int]]:
        """Yield this rank's indices for every remaining batch. If the rank has no samples in a batch, yield one index
        with weight 0."""
        order = self._order()
        for number in range(self._batches, len(self)):
            start = number * self._batch_size
            counts = self._counts(number)
            before = sum(counts[: self._index])
            own = order[start + before : start + before + counts[self._index]]
            yield own or order[start : start + 1]

    def _order(self) -> list[int]:
        if not self._shuffle:
            return list(range(self._length))
        generator = torch.Generator().manual_seed(_combined_seed(self._seed, self._epoch))
        return torch.randperm(self._length, generator=generator).tolist()

    def _counts(self, number: int) -> list[int]:
        batch_size = min(self._batch_size, self._length - number * self._batch_size)
        return split_by_shares(batch_size, self._shares)


class _BatchSampler:
    def __init__(self, loader: DistributedLoader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[list[int]]:
        return self._loader.remaining_batches()

    def __len__(self) -> int:
        return len(self._loader)


def workers_per_rank(dataset: Dataset[Any], local_ranks: int) -> int:
    """Return the number of loader workers: the number of CPU cores per rank, up to a maximum. The result is 0 for
    tensors in memory, or if each rank has only one core.
    """
    if isinstance(dataset, TensorDataset):
        return 0
    cores = processors() // local_ranks
    return 0 if cores < 2 else min(cores, MAX_WORKERS)


def _checked_length(dataset: Any) -> int:
    if isinstance(dataset, DataLoader):
        raise UsageError(
            "Expected a dataset, but got a DataLoader. Pass the dataset of the loader: `run.loader(loader.dataset, batch_size=64)`."
        )
    if not hasattr(dataset, "__getitem__") and not hasattr(dataset, "__iter__"):
        raise UsageError(
            f"The first argument must be a dataset, not {type(dataset).__name__}: `run.loader(dataset, batch_size=64)`."
        )
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise UsageError(
            f"{type(dataset).__name__} is an iterable dataset, which cannot be split among ranks. Pass a map-style dataset with "
            "len() and [], or use run.rank and run.world_size to split the stream."
        )
    try:
        length = len(dataset)
    except TypeError:
        raise UsageError(f"{type(dataset).__name__} has no length. Add a __len__ method.") from None
    if length == 0:
        raise UsageError("The dataset is empty.")
    return length


def _check(batch_size: int, shares: Sequence[float], options: dict[str, Any]) -> None:
    check_count("batch_size", batch_size)
    active = sum(share > 0 for share in shares)
    if batch_size < active:
        raise UsageError(
            f"batch_size={batch_size} is too small: each of the {active} ranks needs at least one "
            "sample. `batch_size` is the total over all ranks."
        )
    for name in ("sampler", "batch_sampler", "generator"):
        if name in options:
            raise UsageError(
                f"run.loader() sets {name}= to use every sample exactly once across all ranks. Omit {name}=."
            )


def _combined_seed(*numbers: int) -> int:
    """Combine several numbers into one seed. Similar numbers result in different seeds."""
    return zlib.crc32(repr(numbers).encode())
