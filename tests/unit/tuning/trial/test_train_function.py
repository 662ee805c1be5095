"""Training functions in a form that another process can load."""

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from legroom.errors import UsageError
from legroom.tuning.trial.function import CannotLoad, TrainFunction
from legroom.tuning.trial.process import call
from legroom.tuning.trial.trial import Trial


def module_level(config: dict[str, int], trial: object) -> int:
    return config["x"] + 1


def test_a_function_in_a_file_is_identified_by_the_file(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "import math\nimport neighbor\nfrom xml import dom\ndef train(config, trial):\n    return config['x'] * 2\n\nif __name__ == '__main__':\n    raise SystemExit(1)\n"
    )
    (tmp_path / "neighbor.py").write_text("")
    function = TrainFunction.of(f"{file}:train")
    assert not function.pickled
    assert function.imports == ["math", "xml", "xml.dom"]
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


def ray_tutorial(config: Any, checkpoint_dir: Any = None, data_dir: Any = None) -> Any:
    return config, checkpoint_dir, data_dir


def annotated(config: Any, current: "Trial") -> Any:
    return config, current


CALLS: list[tuple[Any, Any]] = [
    (lambda config, trial: (config, trial), ("config", "trial")),
    (lambda trial, config: (config, trial), ("config", "trial")),
    (lambda params, trial=None: (params, trial), ("config", "trial")),
    (annotated, ("config", "trial")),
    (lambda config: config, "config"),
    (lambda trial: trial, "trial"),
    (lambda trial, data=None: (trial, data), ("trial", None)),
    (lambda *everything: everything, ("config",)),
    (lambda config, **further: (config, further), ("config", {})),
    (lambda config, width=8: (config, width), ("config", 8)),
    (ray_tutorial, ("config", "folder", None)),
    (partial(ray_tutorial, data_dir="data"), ("config", "folder", "data")),
]


@pytest.mark.parametrize(("function", "expected"), CALLS, ids=range(len(CALLS)))
def test_parameters_are_given_by_name_or_annotation(function: Any, expected: Any, tmp_path: Path) -> None:
    trial = Trial(number=0, config={}, folder=tmp_path, channel=None, checkpoint="folder")  # type: ignore[arg-type]
    config = {"x": 1}
    named = {"config": config, "trial": trial}

    def filled(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(filled, value))
        return named.get(value, value) if isinstance(value, str) else value

    assert call(function, config, trial) == filled(expected)
    TrainFunction.of(function)


def test_a_parameter_without_a_value_is_an_error() -> None:
    with pytest.raises(
        UsageError, match=r"needs a value for `data`. Name the parameter `trial` .*partial\(train, data"
    ):
        TrainFunction.of(lambda config, data: None)


def test_a_parameter_without_a_value_in_a_file_is_an_error_on_loading(tmp_path: Path) -> None:
    file = tmp_path / "needs_data.py"
    file.write_text("def train(config, data): ...\n")
    with pytest.raises(CannotLoad, match="needs a value for `data`"):
        TrainFunction.of(f"{file}:train").load()


def test_arguments_of_with_parameters_are_pickled_with_the_function() -> None:
    ray_tune = pytest.importorskip("ray.tune")
    wrapped = ray_tune.with_parameters(ray_tutorial, data_dir="data")
    function = TrainFunction.of(wrapped)
    assert function.name == "ray_tutorial"
    assert function.load()({"x": 1}) == ({"x": 1}, None, "data")


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
        ("train.py", "Specify the file and the function as `train.py:train`"),
        ("nowhere.py:train", "The script `nowhere.py` does not exist"),
        (7, "not int"),
    ],
)
def test_an_invalid_function_is_an_error(function: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TrainFunction.of(function)


def test_the_error_for_a_missing_function_lists_the_existing_ones(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("def fit(config, trial): ...\n")
    with pytest.raises(UsageError, match="no function `train`. Functions in this file: fit"):
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
        UsageError, match=r"takes no configuration. Define the function as `def train\(config, trial\)`"
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


def test_a_class_is_rejected_with_a_replacement() -> None:
    class Train:
        def __init__(self, config: dict[str, float]) -> None:
            pass

    with pytest.raises(UsageError, match="The class Train cannot run as a trial. Pass a function"):
        TrainFunction.of(Train)
