"""The candidates for the batch size setting of a script: options, variables and lines in files."""

import argparse
import builtins
import configparser
import inspect
import io
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from legroom.memory.event_base import Frame
from legroom.observe.script import Script
from legroom.observe.source.batch_setting import BatchSetting
from legroom.observe.source.script_settings import ScriptSettings


@pytest.fixture
def no_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore source files, because the tests themselves contain batch sizes."""
    monkeypatch.setattr(ScriptSettings, "_sources", lambda self: iter(()))


def followed(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> ScriptSettings:
    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", argparse.ArgumentParser.parse_known_args)
    found = ScriptSettings(arguments)
    found._follow_argparse()
    return found


def described(setting: BatchSetting) -> str:
    arguments = setting.script_with(Script("train.py"), 9).arguments
    return f"{setting.how(9)}: {' '.join(arguments)}"


@pytest.mark.usefixtures("no_sources")
@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ("--epochs 3", "Add `--batch-size 9`: --batch-size 9 --epochs 3"),
        ("--epochs 3 -b 64", "Use `-b 9`: --epochs 3 -b 9"),
        ("-b64 --epochs 3", "Use `-b9`: -b9 --epochs 3"),
        ("--batch-s=64", "Use `--batch-s=9`: --batch-s=9"),
        ("--test-batch-size 64 --batch-norm 64", "Add `--batch-size 9`: --batch-size 9 --test-batch-size 64 --batch-norm 64"),
    ],
)  # fmt: skip
def test_options_of_argparse_are_found(arguments: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script = followed(monkeypatch, *arguments.split())
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-norm", type=int, default=1)
    parser.add_argument("--test-batch-size", type=int, default=64)
    parser.add_argument("-b", "--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=64)
    parser.parse_args(arguments.split())
    assert described(script.candidates(64)[0]) == found


@pytest.mark.usefixtures("no_sources")
def test_an_option_is_found_by_its_destination(monkeypatch: pytest.MonkeyPatch) -> None:
    script = followed(monkeypatch, "-n", "16", "32")
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", dest="batch_size", type=int)
    parser.add_argument("epochs", type=int)
    parser.parse_args(["-n", "16", "32"])
    assert [described(each) for each in script.candidates(16)] == ["Use `-n 9`: -n 9 32"]


@pytest.mark.usefixtures("no_sources")
def test_an_option_of_a_subcommand_comes_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    script = followed(monkeypatch, "train", "data")
    parser = argparse.ArgumentParser()
    train = parser.add_subparsers().add_parser("train")
    train.add_argument("--bs", type=int, default=8)
    train.add_argument("rest", nargs="*")
    parser.parse_args(["train", "data"])
    assert [described(each) for each in script.candidates(8)] == ["Add `--bs 9`: train data --bs 9"]


@pytest.mark.usefixtures("no_sources")
def test_options_of_typer_are_found() -> None:
    found: list[str] = []
    app = typer.Typer()

    @app.command()
    def train(batch_size: int = 8, val_batch_size: int = 8) -> None:
        found.extend(described(each) for each in ScriptSettings(()).candidates(8))

    app([], standalone_mode=False)
    assert found == ["Add `--batch-size 9`: --batch-size 9", "Add `--val-batch-size 9`: --val-batch-size 9"]


@pytest.mark.usefixtures("no_sources")
@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ("train.batch_size=32 val.batch_size=32", ["Use `train.batch_size=9`", "Use `val.batch_size=9`"]),
        ("--trainer.batch_size=64 --lr 1", ["Use `--trainer.batch_size=9`"]),
        ("3 32", ["Use `3 9`"]),
        ("--hidden 32", ["Use `--hidden 9`"]),
        ("--hidden 64", []),
    ],
)
def test_arguments_without_a_known_parser_are_found(arguments: str, found: list[str]) -> None:
    assert [each.how(9) for each in ScriptSettings(tuple(arguments.split())).candidates(32)] == found


def test_variables_are_found_if_the_script_parses_its_own_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptSettings, "_sources", lambda self: iter([("x.py", "for each in sys.argv:")]))
    batch_size, config = 12, {"inner": {"micro_batch": 3}}
    found = [each.how(9) for each in ScriptSettings(("a",)).candidates(12)]
    assert found == ["Add `--batch_size=9`", "Add `--micro_batch=9`"]
    assert batch_size
    assert config


@pytest.mark.slow
def test_lines_and_variables_in_script_files_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_module_of_test.py").write_text(
        "import os\nBATCH_SIZE = 64  # batch_size = 1\n"
        "bs = int(os.environ.get('TRAIN_BATCH', '32'))\nnum_batches = 4\nbatch_size = 1.5\nb = 2\n"
    )
    config = tmp_path / "config.json"
    config.write_text('{"test_batch_size": 64,\n "batch_size": 64}')
    monkeypatch.syspath_prepend(str(tmp_path))
    script = ScriptSettings(())
    script._record_opened(str(config))
    __import__("own_module_of_test")
    try:
        own = [each for each in script.candidates(64) if str(tmp_path) in each.file or each.variable]
    finally:
        del sys.modules["own_module_of_test"]
    assert [each.how(9) for each in own] == [
        "Set the environment variable `TRAIN_BATCH=9`",
        "Set `BATCH_SIZE = 9` in own_module_of_test.py, line 2",
        'Set `"batch_size": 9` in config.json, line 2',
        'Set `"test_batch_size": 9` in config.json, line 1',
    ]
    assert own[2].start_options(9)["edits"] == {str(config): '{"test_batch_size": 64,\n "batch_size": 9}'}


@pytest.mark.parametrize("source", ["batch_size = 8\n", "config = 'ä\x85'\n\f\nbatch_size = 8\n"])
def test_byte_order_mark_and_form_feed_do_not_change_the_edit(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "train.py"
    file.write_text(source, encoding="utf-8-sig")
    monkeypatch.setattr("legroom.observe.source.script_settings.user_files", lambda: [str(file)])
    (found,) = [each for each in ScriptSettings(()).candidates(8) if each.file]
    assert found.start_options(9)["edits"] == {str(file): source.replace("= 8", "= 9")}
    assert found.how(9) == f"Set `batch_size = 9` in train.py, line {source.count(chr(10))}"


def test_options_are_followed_only_inside_the_block() -> None:
    plain = argparse.ArgumentParser.parse_known_args
    with ScriptSettings(()).followed_options():
        assert argparse.ArgumentParser.parse_known_args is not plain
    assert argparse.ArgumentParser.parse_known_args is plain


def test_configuration_files_are_followed_only_inside_the_block(tmp_path: Path) -> None:
    settings = ScriptSettings(())
    (tmp_path / "in.yaml").write_text("train:\n  batch_size: 64\n")
    (tmp_path / "out.yaml").write_text("batch_size: 64\n")
    with settings.followed_options():
        (tmp_path / "in.yaml").read_text()
    (tmp_path / "out.yaml").read_text()
    found = [each.how(9) for each in settings.candidates(64) if str(tmp_path) in each.file]
    assert found == ["Set `train.batch_size` to 9 in in.yaml, line 2"]


@pytest.mark.parametrize(
    "read",
    [
        lambda path: open(path).close(),
        lambda path: open(file=str(path), mode="rb").close(),
        lambda path: io.open(path, "rt").close(),  # noqa: UP020
        lambda path: path.read_bytes(),
        lambda path: configparser.ConfigParser().read(path),
    ],
)
def test_configuration_files_that_are_read_are_recorded(
    read: Callable[[Path], object], tmp_path: Path
) -> None:
    path = tmp_path / "a.ini"
    path.write_text("[train]\nbatch_size = 64\n")
    settings = ScriptSettings(())
    with settings.followed_options():
        read(path)
    assert list(settings._opened) == [str(path)]


def test_other_opened_files_are_not_recorded(tmp_path: Path) -> None:
    settings = ScriptSettings(())
    with settings.followed_options():
        (tmp_path / "a.ini").write_text("bs=8")
        (tmp_path / "a.txt").write_text("bs=8")
        (tmp_path / "a.txt").read_text()
        open(os.open(tmp_path / "a.ini", os.O_RDONLY)).close()
        with pytest.raises(FileNotFoundError):
            (tmp_path / "missing.ini").open()
    assert not settings._opened


def test_the_following_open_is_the_same_everywhere_and_can_be_pickled() -> None:
    plain = open
    with ScriptSettings(()).followed_options():
        assert open is not plain
        assert open is io.open
        assert pickle.loads(pickle.dumps(open)) is open
        assert inspect.signature(open) == inspect.signature(plain)
    assert open is io.open is plain


def test_an_open_function_of_the_script_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = io.open
    monkeypatch.setattr("builtins.open", plain)
    with ScriptSettings(()).followed_options():
        builtins.open = own = lambda *args: plain(*args)  # type: ignore[assignment]
    assert open is own
    assert io.open is plain


def test_no_audit_hook_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.addaudithook", lambda hook: pytest.fail("hooks slow down sys._getframe"))
    with ScriptSettings(()).followed_options():
        pass


def test_variable_is_an_option_only_if_the_program_assigns_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    batch_size = 48
    texts = {"reads": "import sys\nprint(sys.argv)", "assigns": "globals()[key] = sys.argv[1]"}
    found = {}
    for name, text in texts.items():
        monkeypatch.setattr(ScriptSettings, "_sources", lambda self, text=text: iter([("train.py", text)]))
        settings = ScriptSettings(())
        found[name] = [each.name for each in settings.candidates(batch_size, only_declared=True)]
    assert "--batch_size" not in found["reads"]
    assert "--batch_size" in found["assigns"]


@pytest.mark.parametrize(
    ("loader", "found"),
    [
        ("DataLoader(data, batch_size=config['size'])", ['Set `"size": 9` in train.py, line 2']),
        ("DataLoader(data, 32)", ["Set `DataLoader(data, 9)` in train.py, line 5"]),
        ("DataLoader(data, batch_size=n)", ["Set `n = 9` in train.py, line 4"]),
    ],
)
def test_source_of_the_loaders_batch_size_comes_first(
    loader: str, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "train.py"
    file.write_text(f'config = {{\n    "size": 32,\n}}\nn = 32\nloader = {loader}\nbatch_size = 32\n')
    monkeypatch.setattr(ScriptSettings, "_sources", lambda self: iter([(str(file), file.read_text())]))
    candidates = ScriptSettings(()).candidates(32, loader=[Frame(str(file), 5, "<module>")])
    assert [each.how(9) for each in candidates if each.rank < 0] == found


@pytest.mark.parametrize(
    ("loader", "found"),
    [
        ("DataLoader(data, batch_size=8, num_workers=8)", "batch_size=9"),
        ("DataLoader(data, num_workers=8, batch_size=8)", "batch_size=9"),
        ("DataLoader(data, 8, num_workers=4)", "DataLoader(data, 9, num_workers=4)"),
        ("'ä', DataLoader(data, prefetch_factor=8, batch_size=int(8), num_workers=4)", None),
        ("DataLoader(data, num_workers=8, batch_size=max(1, 8))", None),
        ("DataLoader(data, num_workers=8, batch_size=max(1, n))", None),
        ("DataLoader(data, num_workers=8, batch_size=count(8))", None),
    ],
)
def test_other_numbers_on_the_line_of_the_loader_are_not_the_batch_size(
    loader: str, found: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"loader = {loader}\n")
    monkeypatch.setattr(ScriptSettings, "_sources", lambda self: iter([(str(file), file.read_text())]))
    candidates = ScriptSettings(()).candidates(8, loader=[Frame(str(file), 1, "<module>")])
    assert [each.text_with(9) for each in candidates] == ([found] if found else [])


def test_path_of_a_key_is_compared_with_the_code_that_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, file = tmp_path / "conf" / "a.yaml", tmp_path / "train.py"
    config.parent.mkdir()
    text = "pretrain:\n  size: 32\nfinetune:\n  size: 32\n"
    code = "cfg = load()\nloader = DataLoader(data, batch_size=cfg['finetune']['size'])\n"
    file.write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        ScriptSettings, "_sources", lambda self: iter([(str(config), text), (str(file), code)])
    )
    first, second = ScriptSettings(()).candidates(32, loader=[Frame(str(file), 2, "<module>")])
    assert first.how(9) == "Set `finetune.size` to 9 in conf/a.yaml, line 4"
    assert first.rank < second.rank < 0


def test_other_constants_with_the_name_and_value_of_the_loaders_batch_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, other = tmp_path / "train.py", tmp_path / "other.py"
    file.write_text("batch_size = 16\nloader = DataLoader(data, batch_size=batch_size)\n")
    other.write_text("batch_size = 16\n")
    sources = [(str(each), each.read_text()) for each in (other, file)]
    monkeypatch.setattr(ScriptSettings, "_sources", lambda self: iter(sources))
    candidates = ScriptSettings(()).candidates(16, loader=[Frame(str(file), 2, "<module>")])
    assert [each.file for each in candidates if each.rank < 0] == [str(file)]


@pytest.mark.parametrize(("name", "rank"), [("chunk", 4), ("bs", -1)])
def test_step_of_a_loop_is_a_candidate_without_a_loader(
    name: str, rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "train.py"
    code = f"{name} = 16\nfor i in range(0, 99, {name}):\n    model(x[i])\n"
    file.write_text(code)
    monkeypatch.setattr(ScriptSettings, "_sources", lambda self: iter([(str(file), code)]))
    running = [Frame(str(file), 3, "<module>")]
    assert [each.rank for each in ScriptSettings(()).candidates(None, running=running)] == [rank] * (
        len(name) > 1
    )


def test_a_variable_comes_before_a_default_value(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [("data.py", "def read(path, batch_size=8): pass"), ("train.py", "batch_size = 8")]
    monkeypatch.setattr(ScriptSettings, "_sources", lambda self: iter(sources))
    first, second = ScriptSettings(()).candidates(8)
    assert [first.file, second.file] == ["train.py", "data.py"]
    assert first.rank < second.rank


def test_equal_lines_of_two_files_are_two_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [("train.py", "batch_size = 8"), ("other.py", "batch_size = 8")]
    monkeypatch.setattr(ScriptSettings, "_sources", lambda self: iter(sources))
    assert [each.file for each in ScriptSettings(()).candidates(8)] == ["train.py", "other.py"]
