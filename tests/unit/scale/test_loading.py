"""The loader of a run: every sample exactly once across all ranks, for any shares, and resumable."""

from itertools import chain
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from legroom.errors import UsageError
from legroom.scale.loading import DistributedLoader, workers_per_rank

SAMPLES = 23


def loader(index: int = 0, shares: tuple[float, ...] = (1.0,), **options: Any) -> DistributedLoader:
    dataset = TensorDataset(torch.arange(SAMPLES))
    return DistributedLoader(
        dataset,
        options.pop("batch_size", 6),
        index=index,
        shares=shares,
        device=None,
        local_ranks=1,
        **options,
    )


def batches_of(distributed: DistributedLoader) -> list[list[int]]:
    return [batch.tolist() for (batch,) in distributed]


@pytest.mark.parametrize("shares", [(1.0, 1.0), (3.0, 1.0), (1.0, 1.0, 1.0, 1.0)])
def test_the_batches_of_all_ranks_combine_to_those_of_one_process(shares: tuple[float, ...]) -> None:
    counts: list[list[bool]] = [[] for _ in shares]
    per_rank = [
        batches_of(loader(index, shares, on_batch=counts[index].append)) for index in range(len(shares))
    ]
    for number, whole in enumerate(batches_of(loader())):
        parts = [per_rank[index][number] for index in range(len(shares)) if counts[index][number]]
        assert [sample for part in parts for sample in part] == whole


def test_a_rank_without_samples_of_the_last_batch_uses_one_that_does_not_count() -> None:
    counts: list[bool] = []
    batches = batches_of(loader(3, (1.0,) * 4, batch_size=7, on_batch=counts.append))
    assert counts == [True, True, True, False]
    assert len(batches[-1]) == 1


def test_every_epoch_has_another_order_which_set_epoch_repeats() -> None:
    distributed = loader()
    first, second = batches_of(distributed), batches_of(distributed)
    distributed.set_epoch(0)
    assert first != second
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(SAMPLES))
    assert batches_of(distributed) == first


def test_without_shuffle_samples_are_in_order() -> None:
    assert list(chain(*batches_of(loader(shuffle=False)))) == list(range(SAMPLES))


def test_drop_last_drops_an_incomplete_batch() -> None:
    distributed = loader(drop_last=True)
    assert [len(batch) for batch in batches_of(distributed)] == [6, 6, 6]
    assert len(distributed) == 3


def test_a_loader_resumes_at_its_position_with_another_number_of_ranks() -> None:
    distributed = loader()
    batches_of(distributed)
    batches = iter(distributed)
    for _ in range(2):
        next(batches)
    state = distributed.state_dict()
    rest = [batch.tolist() for (batch,) in batches]
    assert state == {"epoch": 1, "batches": 2, "seed": 0}

    halves = [loader(index, (1.0, 1.0)) for index in range(2)]
    for half in halves:
        half.load_state_dict(state)
    resumed = [first + second for first, second in zip(*(batches_of(half) for half in halves), strict=True)]
    assert resumed == rest


def test_worker_seeds_depend_on_epoch_and_rank() -> None:
    def seed(index: int, epoch: int) -> int:
        distributed = loader(index, (1.0, 1.0))
        distributed.set_epoch(epoch)
        next(iter(distributed))
        return distributed._generator.initial_seed()

    assert len({seed(0, 0), seed(0, 1), seed(1, 0)}) == 3
    assert seed(1, 0) == seed(1, 0)


def test_tensors_in_memory_need_no_workers() -> None:
    assert workers_per_rank(TensorDataset(torch.zeros(1)), 1) == 0


def test_cores_are_split_among_the_ranks_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)), raising=False)
    assert [workers_per_rank(_Stored(), ranks) for ranks in (1, 4, 16)] == [8, 4, 0]


@pytest.mark.parametrize("batch_size", [0, -1, 2.5, True])
def test_an_invalid_batch_size_is_rejected(batch_size: Any) -> None:
    with pytest.raises(UsageError, match="is not valid. Pass an integer of 1 or more"):
        loader(batch_size=batch_size)


def test_fewer_samples_than_ranks_are_rejected() -> None:
    with pytest.raises(UsageError, match="each of the 4 ranks needs at least one sample"):
        loader(shares=(1.0,) * 4, batch_size=3)


def test_an_iterable_dataset_is_rejected_with_advice() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(3))

    with pytest.raises(UsageError, match="use run.rank and run.world_size to split the stream"):
        DistributedLoader(Stream(), 4, index=0, shares=[1.0], device=None, local_ranks=1)


def test_a_custom_sampler_is_rejected() -> None:
    with pytest.raises(UsageError, match="sets sampler= to use every sample"):
        loader(sampler=[1, 2])


class _Stored(Dataset[int]):
    def __len__(self) -> int:
        return SAMPLES
