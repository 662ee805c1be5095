"""The batch size argument of a script, and scripts that expect torchrun."""

from pathlib import Path

import pytest

from legroom.observe.script import Script
from legroom.predict.script_estimate import find_batch_setting, needs_torchrun, single_rank_environment


def test_the_batch_size_argument_is_replaced_in_its_position() -> None:
    setting = find_batch_setting(Script("train.py", ("--batch-size=64", "--epochs", "3")))
    assert setting is not None
    assert setting.argument.value == 64
    assert setting.script_with(96).command_line == ["train.py", "--batch-size=96", "--epochs", "3"]


def test_a_default_in_the_source_is_a_batch_size_argument(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text('parser.add_argument("--batch_size", type=int, default=12)\n')
    setting = find_batch_setting(Script(str(tmp_path / "train.py"), ("--epochs", "3")))
    assert setting is not None
    assert setting.argument.value == 12
    assert setting.script_with(24).arguments == ("--epochs", "3", "--batch_size", "24")


def test_a_script_without_the_argument_or_without_source_has_no_setting(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("batch_size = 12\n")
    assert find_batch_setting(Script(str(tmp_path / "train.py"))) is None
    assert find_batch_setting(Script(str(tmp_path))) is None


@pytest.mark.parametrize(
    "error",
    [
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, but not set",
        "train.py:8, KeyError: 'LOCAL_RANK'. It had used no GPU memory.",
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
