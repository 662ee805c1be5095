"""A setting of the batch size: how to start the script with another value, and the advice to the user."""

import pytest

from legroom.observe.script import Script
from legroom.observe.source.batch_setting import SIZE, BatchSetting
from legroom.predict.setting_check import _is_doubled


@pytest.mark.slow
def test_an_argument_is_replaced_in_its_position() -> None:
    setting = BatchSetting(
        name="-b", value=64, rank=0, text=f"-b {SIZE}", arguments=("-b", SIZE, "--epochs", "3")
    )
    assert setting.script_with(Script("train.py", ("-b", "64", "--epochs", "3")), 96).command_line == [
        "train.py", "-b", "96", "--epochs", "3",
    ]  # fmt: skip
    assert setting.start_options(96) == {"environment": {}, "edits": {}}
    assert setting.how(96) == "Use `-b 96`"


def test_a_variable_and_a_line_leave_the_arguments_unchanged() -> None:
    script = Script("train.py", ("--epochs", "3"))
    variable = BatchSetting(name="BATCH", value=8, rank=0, text=f"BATCH={SIZE}", variable="BATCH")
    line = BatchSetting(
        name="batch", value=8, rank=1, text=f"batch: {SIZE}", file="/a/c.yaml", line=2, content=f"lr: 1\nbatch: {SIZE}\n"
    )  # fmt: skip
    assert variable.script_with(script, 16) == line.script_with(script, 16) == script
    assert variable.start_options(16)["environment"] == {"BATCH": "16"}
    assert line.start_options(16)["edits"] == {"/a/c.yaml": "lr: 1\nbatch: 16\n"}
    assert variable.how(16) == "Set the environment variable `BATCH=16`"
    assert line.how(16) == "Set `batch: 16` in c.yaml, line 2"


@pytest.mark.parametrize(
    ("before", "after", "is_doubled"),
    [
        ([(8, 3, 32, 32)], [(16, 3, 32, 32)], True),
        ([(35, 20), (2, 20, 650)], [(35, 40), (2, 40, 650)], True),  # the batch is the second dimension
        ([(8, 128)], [(8, 128)], False),
        ([(8, 128)], [(16, 256)], False),
        ([(8, 128)], [(24, 128)], False),
        ([(8, 128)], [(8, 128), (8,)], False),
    ],
)
def test_a_batch_is_doubled_in_one_dimension(
    before: list[tuple[int, ...]], after: list[tuple[int, ...]], is_doubled: bool
) -> None:
    assert _is_doubled(before, after) is is_doubled
