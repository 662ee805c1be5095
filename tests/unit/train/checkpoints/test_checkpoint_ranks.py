"""Checkpoints that several ranks write, and that any number of ranks reads."""

import re
from collections.abc import Iterator

import pytest
from bench.lib.rank_pool import RankPool
from tests.unit.train.checkpoints import checkpoint_rank_tasks as tasks

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def two() -> Iterator[RankPool]:
    with RankPool(2) as pool:
        yield pool


@pytest.fixture(scope="module")
def four() -> Iterator[RankPool]:
    with RankPool(4) as pool:
        yield pool


def test_shards_of_two_ranks_load_on_four_ranks_and_on_one(tmp_path, two, four):
    saved = two.run(tasks.save, str(tmp_path / "two"), "fsdp")[0]
    on_four = four.run(tasks.resume_and_save, str(tmp_path / "two"), "fsdp", str(tmp_path / "four"))
    assert on_four == [(5, saved)] * 4
    assert tasks.resume(str(tmp_path / "four"), "plain") == (5, saved)


@pytest.mark.parametrize("before", ["fsdp", "ddp", "part"])
@pytest.mark.parametrize("after", ["fsdp", "ddp", "part"])
def test_every_strategy_resumes_from_every_other(tmp_path, two, before, after):
    saved = combined(two.run(tasks.save, str(tmp_path), before))
    resumed = two.run(tasks.resume, str(tmp_path), after)
    assert {step for step, _ in resumed} == {5}
    assert combined([state for _, state in resumed]) == saved
    assert tasks.resume(str(tmp_path), "plain") == (5, saved)


def test_a_single_process_checkpoint_loads_on_two_ranks(tmp_path, two):
    saved = tasks.save(str(tmp_path), "plain")
    assert two.run(tasks.resume, str(tmp_path), "fsdp") == [(5, saved)] * 2


@pytest.mark.parametrize("kind", ["fsdp", "ddp"])
def test_a_background_save_contains_the_state_at_the_call(tmp_path, two, kind):
    saved = two.run(tasks.save, str(tmp_path), kind, True)[0]
    assert tasks.resume(str(tmp_path), "plain") == (5, saved)


@pytest.mark.parametrize("kind", ["fsdp", "ddp", "part"])
def test_a_resumed_run_with_ranks_continues_bit_for_bit(tmp_path, two, kind):
    for uninterrupted, resumed in two.run(tasks.uninterrupted_and_resumed, str(tmp_path), kind):
        assert uninterrupted == resumed


@pytest.mark.parametrize("failing", [0, 1])
def test_a_full_disk_on_one_rank_raises_on_all_and_keeps_the_last_checkpoint(tmp_path, two, failing):
    results = two.run(tasks.fails_on_one_rank, str(tmp_path), "ddp", failing)
    error = "There is not enough disk space for the checkpoint"
    for rank, (message, names) in enumerate(results):
        assert message.startswith(error if rank == failing else f"Rank {failing}: {error}")
        assert names == ["step-00000001", "step-00000003", "step-00000001"]


@pytest.mark.parametrize(
    "file", ["shards/.metadata", "shards/__0_0.distcp", "shards/__1_0.distcp", "rank-1.pt"]
)
def test_a_damaged_shard_is_reported_on_every_rank(tmp_path, two, file):
    two.run(tasks.save, str(tmp_path), "fsdp")
    path = tmp_path / "step-00000005" / file
    contents = bytearray(path.read_bytes())
    contents[len(contents) // 2] ^= 4
    path.write_bytes(contents)
    messages = two.run(tasks.resume_error, str(tmp_path), "fsdp")
    assert all(f"{file} is damaged" in message for message in messages), messages


def test_metadata_that_references_code_is_rejected(tmp_path, two):
    import pickle

    from legroom.errors import CheckpointError
    from legroom.train.checkpoints.sharded import sharded_sizes

    class Malicious:
        def __reduce__(self):
            return (eval, ("1 / 0",))

    two.run(tasks.save, str(tmp_path), "fsdp")
    (tmp_path / "step-00000005/shards/.metadata").write_bytes(pickle.dumps(Malicious()))
    with pytest.raises(
        CheckpointError, match=r"the file references builtins\.eval, which is not allowed in a metadata file"
    ):
        sharded_sizes(tmp_path / "step-00000005")


def test_a_parallel_run_resumes_under_other_strategies(tmp_path, two):
    """Compare a run in a single process with the same run under changing strategies. Both are resumed in the middle of
    an epoch."""
    single = [tasks.in_parallel(str(tmp_path / "single"), "auto", 1) for _ in range(5)]
    changing = [
        two.run(tasks.in_parallel, str(tmp_path / "changing"), strategy, 1)
        for strategy in ("ddp", "fsdp", "pipeline", "ddp")
    ]
    changing.append([tasks.in_parallel(str(tmp_path / "changing"), "auto", 1)])
    for (step, loss), ranks in zip(single, changing, strict=True):
        for rank_step, rank_loss in ranks:
            assert rank_step == step
            assert rank_loss == pytest.approx(loss, rel=1e-5)


def test_every_sample_is_used_once_if_the_number_of_ranks_changes(tmp_path, two, four):
    first = two.run(tasks.used_samples, str(tmp_path), 4)
    rest = four.run(tasks.used_samples, str(tmp_path), None)
    assert sorted(sample for samples in first + rest for sample in samples) == list(range(48))


def test_every_rank_restores_its_own_random_state(tmp_path, two):
    assert two.run(tasks.random_state_is_restored, str(tmp_path)) == [True, True]


def combined(states: list[dict]) -> dict:
    """Combine the states of all ranks, which are either equal or parts of the whole state."""
    return {name: value for state in states for name, value in state.items()}


def test_rank_zero_saves_alone_and_later_with_the_other_ranks(tmp_path, two):
    (errors, messages, first), (_, other_messages, second) = two.run(
        tasks.only_rank_zero_saves, str(tmp_path), "ddp"
    )
    assert errors == []
    assert len(messages) == 1
    assert "Only rank 0 called checkpoints.save()" in messages[0]
    assert other_messages == []
    ranks, step, _ = first
    assert ranks == {1: 1, 2: 1, 3: 2}  # rank 1 called save() for step 2 too late
    assert step == 3
    assert first == second


def test_rank_zero_cannot_save_shards_alone_and_all_ranks_log_the_reason(tmp_path):
    with RankPool(2) as two:
        (errors, _, _), (_, messages, _) = two.run(tasks.only_rank_zero_saves, str(tmp_path), "fsdp")
    assert errors == [
        "Only rank 0 called checkpoints.save(), but the weights are distributed across all ranks. Call save() on every "
        "rank, without `if rank == 0:`."
    ]
    assert messages == [f"Rank 0 stopped: {errors[0]}"]


def test_a_long_wait_names_the_call_and_the_location_of_every_rank(tmp_path, two):
    messages, others = two.run(tasks.one_rank_does_not_save, str(tmp_path))
    assert others == []
    assert len(messages) == 1
    assert re.fullmatch(
        r"Rank 0 has waited for \d s in checkpoints.save\(\) at .*checkpoint_rank_tasks.py:\d+. "
        r"Rank 1 is at .*checkpoint_rank_tasks.py:\d+. All ranks must make the same calls.",
        messages[0],
    )
