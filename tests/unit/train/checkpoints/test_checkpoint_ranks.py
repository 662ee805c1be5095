"""Checkpoints that several ranks write together, and that any other number of ranks reads."""

from collections.abc import Iterator

import pytest
from bench.lib.rank_pool import RankPool
from tests.unit.train.checkpoints import checkpoint_rank_tasks as tasks


@pytest.fixture(scope="module")
def two() -> Iterator[RankPool]:
    with RankPool(2) as pool:
        yield pool


@pytest.fixture(scope="module")
def four() -> Iterator[RankPool]:
    with RankPool(4) as pool:
        yield pool


def test_shards_of_two_ranks_go_to_four_and_to_one(tmp_path, two, four):
    saved = two.run(tasks.save, str(tmp_path / "two"), "fsdp")[0]
    on_four = four.run(tasks.resume_and_save, str(tmp_path / "two"), "fsdp", str(tmp_path / "four"))
    assert on_four == [(5, saved)] * 4
    assert tasks.resume(str(tmp_path / "four"), "plain") == (5, saved)


@pytest.mark.parametrize("before", ["fsdp", "ddp", "part"])
@pytest.mark.parametrize("after", ["fsdp", "ddp", "part"])
def test_every_strategy_goes_on_from_every_other(tmp_path, two, before, after):
    saved = whole(two.run(tasks.save, str(tmp_path), before))
    resumed = two.run(tasks.resume, str(tmp_path), after)
    assert {step for step, _ in resumed} == {5}
    assert whole([state for _, state in resumed]) == saved
    assert tasks.resume(str(tmp_path), "plain") == (5, saved)


def test_one_process_goes_on_as_two(tmp_path, two):
    saved = tasks.save(str(tmp_path), "plain")
    assert two.run(tasks.resume, str(tmp_path), "fsdp") == [(5, saved)] * 2


@pytest.mark.parametrize("kind", ["fsdp", "ddp"])
def test_what_is_written_in_the_background_is_what_was_at_the_call(tmp_path, two, kind):
    saved = two.run(tasks.save, str(tmp_path), kind, True)[0]
    assert tasks.resume(str(tmp_path), "plain") == (5, saved)


@pytest.mark.parametrize("kind", ["fsdp", "ddp", "part"])
def test_a_resumed_run_goes_on_bit_for_bit(tmp_path, two, kind):
    for whole_run, resumed in two.run(tasks.goes_on_alike, str(tmp_path), kind):
        assert whole_run == resumed


@pytest.mark.parametrize("failing", [0, 1])
def test_a_full_disk_on_one_rank_is_told_on_all_and_leaves_the_last_one(tmp_path, two, failing):
    results = two.run(tasks.fails_on_one_rank, str(tmp_path), "ddp", failing)
    for rank, (told, names) in enumerate(results):
        assert told.startswith("there is no room" if rank == failing else f"rank {failing}: there is no room")
        assert names == ["step-00000001", "step-00000003", "step-00000001"]


@pytest.mark.parametrize(
    "file", ["shards/.metadata", "shards/__0_0.distcp", "shards/__1_0.distcp", "rank-1.pt"]
)
def test_a_damaged_shard_is_told_on_every_rank(tmp_path, two, file):
    two.run(tasks.save, str(tmp_path), "fsdp")
    path = tmp_path / "step-00000005" / file
    contents = bytearray(path.read_bytes())
    contents[len(contents) // 2] ^= 4
    path.write_bytes(contents)
    told = two.run(tasks.mismatch_told, str(tmp_path), "fsdp")
    assert all(f"{file} is damaged" in each for each in told), told


def test_a_table_of_contents_that_names_code_is_not_run(tmp_path, two):
    import pickle

    from legroom.errors import CheckpointError
    from legroom.train.checkpoints.sharded import sharded_sizes

    class Evil:
        def __reduce__(self):
            return (eval, ("1 / 0",))

    two.run(tasks.save, str(tmp_path), "fsdp")
    (tmp_path / "step-00000005/shards/.metadata").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(CheckpointError, match=r"it names builtins\.eval, which does not belong there"):
        sharded_sizes(tmp_path / "step-00000005")


def test_a_run_in_parallel_goes_on_under_other_strategies(tmp_path, two):
    """One process from the beginning to the end, and the same run handed from strategy to strategy in the middle of its epoch."""
    alone = [tasks.in_parallel(str(tmp_path / "alone"), "auto", 1) for _ in range(5)]
    handed = [
        two.run(tasks.in_parallel, str(tmp_path / "handed"), way, 1)
        for way in ("ddp", "fsdp", "pipeline", "ddp")
    ]
    handed.append([tasks.in_parallel(str(tmp_path / "handed"), "auto", 1)])
    for (step, loss), ranks in zip(alone, handed, strict=True):
        for its_step, its_loss in ranks:
            assert its_step == step
            assert its_loss == pytest.approx(loss, rel=1e-5)


def test_rows_are_seen_once_when_the_number_of_ranks_changes(tmp_path, two, four):
    first = two.run(tasks.rows_seen, str(tmp_path), 4)
    rest = four.run(tasks.rows_seen, str(tmp_path), None)
    assert sorted(row for rows in first + rest for row in rows) == list(range(48))


def test_every_rank_gets_its_own_random_numbers_back(tmp_path, two):
    assert two.run(tasks.random_numbers_go_on, str(tmp_path)) == [True, True]


def whole(states: list[dict]) -> dict:
    """What ranks hold together: all the same, or each a part."""
    return {name: value for state in states for name, value in state.items()}
