"""A run's loader: every row once over all ranks, whatever the shares, and on from where it stood."""

from itertools import chain
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from legroom.errors import UsageError
from legroom.scale.loading import Loader, workers_per_rank

ROWS = 23


def loader(place: int = 0, shares: tuple[float, ...] = (1.0,), **options: Any) -> Loader:
    dataset = TensorDataset(torch.arange(ROWS))
    return Loader(
        dataset,
        options.pop("batch_size", 6),
        place=place,
        shares=shares,
        device=None,
        local_ranks=1,
        **options,
    )


def rows(found: Loader) -> list[list[int]]:
    return [batch.tolist() for (batch,) in found]


@pytest.mark.parametrize("shares", [(1.0, 1.0), (3.0, 1.0), (1.0, 1.0, 1.0, 1.0)])
def test_the_ranks_batches_make_up_those_of_one_process(shares: tuple[float, ...]) -> None:
    counts: list[list[bool]] = [[] for _ in shares]
    apart = [rows(loader(place, shares, on_batch=counts[place].append)) for place in range(len(shares))]
    for number, whole in enumerate(rows(loader())):
        parts = [apart[place][number] for place in range(len(shares)) if counts[place][number]]
        assert [row for part in parts for row in part] == whole


def test_a_rank_without_rows_of_the_last_batch_goes_along_with_one_that_does_not_count() -> None:
    counts: list[bool] = []
    batches = rows(loader(3, (1.0,) * 4, batch_size=7, on_batch=counts.append))
    assert counts == [True, True, True, False]
    assert len(batches[-1]) == 1


def test_every_epoch_has_another_order_and_the_same_one_again_after_set_epoch() -> None:
    found = loader()
    first, second = rows(found), rows(found)
    found.set_epoch(0)
    assert first != second
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(ROWS))
    assert rows(found) == first


def test_without_shuffling_rows_come_in_order() -> None:
    assert list(chain(*rows(loader(shuffle=False)))) == list(range(ROWS))


def test_a_last_batch_that_is_not_full_can_be_dropped() -> None:
    found = loader(drop_last=True)
    assert [len(batch) for batch in rows(found)] == [6, 6, 6]
    assert len(found) == 3


def test_it_goes_on_where_it_stood_even_with_another_number_of_ranks() -> None:
    found = loader()
    rows(found)
    batches = iter(found)
    for _ in range(2):
        next(batches)
    state = found.state_dict()
    left = [batch.tolist() for (batch,) in batches]
    assert state == {"epoch": 1, "batches": 2, "seed": 0}

    halves = [loader(place, (1.0, 1.0)) for place in range(2)]
    for half in halves:
        half.load_state_dict(state)
    resumed = [first + second for first, second in zip(*(rows(half) for half in halves), strict=True)]
    assert resumed == left


def test_workers_are_seeded_by_epoch_and_rank() -> None:
    def seed(place: int, epoch: int) -> int:
        found = loader(place, (1.0, 1.0))
        found.set_epoch(epoch)
        next(iter(found))
        return found._draws.initial_seed()

    assert len({seed(0, 0), seed(0, 1), seed(1, 0)}) == 3
    assert seed(1, 0) == seed(1, 0)


def test_tensors_in_memory_need_no_workers() -> None:
    assert workers_per_rank(TensorDataset(torch.zeros(1)), 1) == 0


def test_processors_are_divided_among_the_ranks_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)), raising=False)
    assert [workers_per_rank(_Stored(), ranks) for ranks in (1, 4, 16)] == [8, 4, 0]


@pytest.mark.parametrize("rows_of_a_step", [0, -1, 2.5, True])
def test_a_batch_size_that_is_no_number_of_rows_is_refused(rows_of_a_step: Any) -> None:
    with pytest.raises(UsageError, match="no number of rows"):
        loader(batch_size=rows_of_a_step)


def test_fewer_rows_than_ranks_are_refused() -> None:
    with pytest.raises(UsageError, match="less than one row for each of 4 ranks"):
        loader(shares=(1.0,) * 4, batch_size=3)


def test_a_stream_is_refused_with_what_to_do() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(3))

    with pytest.raises(UsageError, match="divide the stream yourself by run.rank"):
        Loader(Stream(), 4, place=0, shares=[1.0], device=None, local_ranks=1)


def test_a_sampler_of_ones_own_is_refused() -> None:
    with pytest.raises(UsageError, match="sampler= is chosen here"):
        loader(sampler=[1, 2])


class _Stored(Dataset[int]):
    def __len__(self) -> int:
        return ROWS
