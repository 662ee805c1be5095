"""The argument by which a script is told its batch size."""

from pathlib import Path

from legroom.observe.script import Script
from legroom.predict.tracing.batch_setting import find_batch_setting


def test_the_argument_is_replaced_where_it_stands() -> None:
    setting = find_batch_setting(Script("train.py", ("--batch-size=64", "--epochs", "3")))
    assert setting is not None
    assert setting.argument.value == 64
    assert setting.script_with(96).words == ["train.py", "--batch-size=96", "--epochs", "3"]


def test_a_default_in_the_source_is_an_argument_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text('parser.add_argument("--batch_size", type=int, default=12)\n')
    setting = find_batch_setting(Script(str(tmp_path / "train.py"), ("--epochs", "3")))
    assert setting is not None
    assert setting.argument.value == 12
    assert setting.script_with(24).arguments == ("--epochs", "3", "--batch_size", "24")


def test_a_script_that_declares_none_or_cannot_be_read_has_none(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("batch_size = 12\n")
    assert find_batch_setting(Script(str(tmp_path / "train.py"))) is None
    assert find_batch_setting(Script(str(tmp_path))) is None
