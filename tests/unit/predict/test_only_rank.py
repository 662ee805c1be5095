"""Scripts that want torchrun are told apart from those that fail for other reasons."""

import pytest

from legroom.predict.tracing import single_rank


@pytest.mark.parametrize(
    "sentence",
    [
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, but not set",
        "train.py:8, KeyError: 'LOCAL_RANK'; nothing was on the device yet",
    ],
)
def test_a_script_that_asks_for_torchruns_variables_wants_to_be_a_rank(sentence: str) -> None:
    assert single_rank.is_wanted(sentence)


@pytest.mark.parametrize("sentence", ["train.py:8, KeyError: 'HOME'", "KeyError: 'rank'", "RANK"])
def test_other_failures_do_not(sentence: str) -> None:
    assert not single_rank.is_wanted(sentence)


def test_a_lone_rank_is_told_all_that_torchrun_tells() -> None:
    told = single_rank.environment("/somewhere")
    assert told["RANK"] == told["LOCAL_RANK"] == "0"
    assert told["WORLD_SIZE"] == told["LOCAL_WORLD_SIZE"] == "1"
    assert told["MASTER_ADDR"]
    assert 0 < int(told["MASTER_PORT"]) < 65536
    assert told["LEGROOM_LONE_RANK"] == "/somewhere"
