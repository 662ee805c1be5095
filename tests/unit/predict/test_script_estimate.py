"""Scripts that expect to be started by torchrun."""

import pytest

from legroom.predict.script_estimate import needs_torchrun, single_rank_environment


@pytest.mark.parametrize(
    "error",
    [
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, but not set",
        "train.py:8, KeyError: 'LOCAL_RANK'. The script had used no GPU memory.",
    ],
)
def test_a_script_that_reads_the_variables_of_torchrun_needs_torchrun(error: str) -> None:
    assert needs_torchrun(error)


@pytest.mark.parametrize("error", ["train.py:8, KeyError: 'HOME'", "KeyError: 'rank'", "RANK"])
def test_other_errors_do_not_need_torchrun(error: str) -> None:
    assert not needs_torchrun(error)


def test_a_single_rank_has_all_variables_of_torchrun() -> None:
    variables = single_rank_environment("/somewhere")
    assert variables["RANK"] == variables["LOCAL_RANK"] == "0"
    assert variables["WORLD_SIZE"] == variables["LOCAL_WORLD_SIZE"] == "1"
    assert variables["MASTER_ADDR"]
    assert 0 < int(variables["MASTER_PORT"]) < 65536
    assert variables["LEGROOM_SINGLE_RANK"] == "/somewhere"
