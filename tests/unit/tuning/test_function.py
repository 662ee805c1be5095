"""The training function, named so that another process can load it."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from legroom.errors import UsageError
from legroom.tuning.trial.function import CannotLoad, TrainFunction


def module_level(config: dict[str, int], trial: object) -> int:
    return config["x"] + 1


def test_a_function_of_a_file_is_named_by_its_file(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "import math\nimport beside\ndef train(config, trial):\n    return config['x'] * 2\n\nif __name__ == '__main__':\n    raise SystemExit(1)\n"
    )
    (tmp_path / "beside.py").write_text("")
    function = TrainFunction.of(f"{file}:train")
    assert not function.pickled
    assert function.imports == ["math"]
    code = f"from legroom.tuning.trial.function import TrainFunction\nprint(TrainFunction(name='train', file={str(file)!r}).load()({{'x': 4}}, None))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "8\n"
    )


def test_a_file_that_searches_without_asking_whether_it_is_imported_is_read_up_to_its_search(
    tmp_path: Path,
) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "import legroom\ndef train(config, trial):\n    return config['x'] * 2\n\n"
        "try:\n    study = legroom.tune(train, {'x': [1]}, storage='nowhere')\nexcept Exception:\n    pass\n"
        "print(study.best_config)\n"
    )
    assert TrainFunction.of(f"{file}:train").load()({"x": 4}, None) == 8
    assert not Path("nowhere").exists()


def test_a_file_tells_which_function_takes_a_trial(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("def ours(config, trial): ...\ndef rays(config): ...\nother = ours\n")
    takes = {name: TrainFunction.of(f"{file}:{name}").takes_trial for name in ("ours", "rays", "other")}
    assert takes == {
        "ours": True,
        "rays": False,
        "other": False,
    }  # of what is not defined there nothing is sure


def test_a_function_at_the_top_of_a_module_is_imported_again() -> None:
    function = TrainFunction.of(module_level)
    assert not function.pickled
    assert function.load()({"x": 1}, None) == 2


def test_a_function_without_a_name_travels_by_value() -> None:
    more = 3
    function = TrainFunction.of(lambda config, trial: config["x"] + more)
    assert function.pickled
    assert function.load()({"x": 1}, None) == 4


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("train.py", "write it as train.py:train"),
        ("nowhere.py:train", "there is no script 'nowhere.py'"),
        (7, "not a int"),
    ],
)
def test_what_is_no_function_is_told(written: object, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        TrainFunction.of(written)


def test_a_missing_function_is_told_with_those_that_are_there(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("def fit(config, trial): ...\n")
    with pytest.raises(UsageError, match="no function 'train': it has fit"):
        TrainFunction.of(f"{file}:train")


def test_a_file_that_fails_at_import_is_told(tmp_path: Path) -> None:
    file = tmp_path / "broken_train.py"
    file.write_text("raise ValueError('no data')\ndef train(config, trial): ...\n")
    with pytest.raises(CannotLoad, match="could not be imported: ValueError: no data"):
        TrainFunction.of(f"{file}:train").load()


def test_a_function_that_takes_no_configuration_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("def train(): ...\n")
    with pytest.raises(UsageError, match=r"takes no configuration: write it as def train\(config, trial\)"):
        TrainFunction.of(f"{file}:train")
    with pytest.raises(UsageError, match=r"takes \(\): write it as def train\(config, trial\)"):
        TrainFunction.of(lambda: None)


def test_a_script_named_as_a_module_is_told_as_it_is_meant(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def train(config, trial): ...\n")
    with pytest.raises(UsageError, match=r"do you mean .*train\.py:train\?"):
        TrainFunction.of(f"{tmp_path}/train:train")


def test_a_function_that_whoever_imports_its_script_does_not_find_travels_by_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        'def top(config): ...\nif __name__ == "__main__":\n    def below(config): return config\n'
    )
    made: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(script.read_text(), str(script), "exec"), made)
    assert not TrainFunction.of(made["top"]).pickled
    assert TrainFunction.of(made["below"]).load()({"x": 1}) == {"x": 1}
