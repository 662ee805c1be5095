"""Training functions in a form that another process can load."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from legroom.errors import UsageError
from legroom.tuning.trial.function import CannotLoad, TrainFunction


def module_level(config: dict[str, int], trial: object) -> int:
    return config["x"] + 1


def test_a_function_in_a_file_is_identified_by_the_file(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "import math\nimport neighbor\ndef train(config, trial):\n    return config['x'] * 2\n\nif __name__ == '__main__':\n    raise SystemExit(1)\n"
    )
    (tmp_path / "neighbor.py").write_text("")
    function = TrainFunction.of(f"{file}:train")
    assert not function.pickled
    assert function.imports == ["math"]
    code = f"from legroom.tuning.trial.function import TrainFunction\nprint(TrainFunction(name='train', file={str(file)!r}).load()({{'x': 4}}, None))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "8\n"
    )


def test_the_import_of_a_file_ends_at_its_call_of_tune(
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


def test_the_file_shows_which_function_takes_a_trial(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("def ours(config, trial): ...\ndef rays(config): ...\nother = ours\n")
    takes = {name: TrainFunction.of(f"{file}:{name}").takes_trial for name in ("ours", "rays", "other")}
    assert takes == {
        "ours": True,
        "rays": False,
        "other": False,
    }  # the signature of `other` is not visible in the file


def test_a_module_level_function_is_imported_by_name() -> None:
    function = TrainFunction.of(module_level)
    assert not function.pickled
    assert function.load()({"x": 1}, None) == 2


def test_a_lambda_is_pickled() -> None:
    more = 3
    function = TrainFunction.of(lambda config, trial: config["x"] + more)
    assert function.pickled
    assert function.load()({"x": 1}, None) == 4


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("train.py", "Write the file and the function as `train.py:train`"),
        ("nowhere.py:train", "The script `nowhere.py` does not exist"),
        (7, "not a int"),
    ],
)
def test_an_invalid_function_is_an_error(function: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TrainFunction.of(function)


def test_the_error_for_a_missing_function_lists_the_existing_ones(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("def fit(config, trial): ...\n")
    with pytest.raises(UsageError, match="no function `train`. The file defines these functions: fit"):
        TrainFunction.of(f"{file}:train")


def test_a_failing_import_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "broken_train.py"
    file.write_text("raise ValueError('no data')\ndef train(config, trial): ...\n")
    with pytest.raises(CannotLoad, match="could not be imported: ValueError: no data"):
        TrainFunction.of(f"{file}:train").load()


def test_a_function_without_arguments_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("def train(): ...\n")
    with pytest.raises(
        UsageError, match=r"takes no configuration. Define the function as `def train\(config, trial\)`"
    ):
        TrainFunction.of(f"{file}:train")
    with pytest.raises(
        UsageError, match=r"has the signature \(\). Define the function as `def train\(config, trial\)`"
    ):
        TrainFunction.of(lambda: None)


def test_a_script_without_its_suffix_gets_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def train(config, trial): ...\n")
    with pytest.raises(UsageError, match=r"Did you mean `.*train\.py:train`\?"):
        TrainFunction.of(f"{tmp_path}/train:train")


def test_a_function_under_the_main_guard_is_pickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        'def top(config): ...\nif __name__ == "__main__":\n    def below(config): return config\n'
    )
    made: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(script.read_text(), str(script), "exec"), made)
    assert not TrainFunction.of(made["top"]).pickled
    assert TrainFunction.of(made["below"]).load()({"x": 1}) == {"x": 1}
