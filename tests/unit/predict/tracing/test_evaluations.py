"""Evaluations in the source of a script that a trace did not reach."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from legroom.observe.source.user_files import kinds
from legroom.predict.tracing import evaluations
from legroom.predict.tracing.evaluations import ExecutedLines, untraced_evaluation

TRAINING = """
import torch
from torch import nn

for step in range(3):
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
"""
"""A training loop. Its last line is line 8."""


def found_in(folder: Path, code: str, executed: tuple[int, ...] = (), module: str = "") -> str:
    script, helpers = folder / "train.py", folder / "helpers.py"
    script.write_text(TRAINING + code)
    helpers.write_text(module)
    return untraced_evaluation({(str(script), line) for line in executed}, [str(script), str(helpers)])


@pytest.mark.parametrize(
    "code",
    [
        "model.eval()\n",
        "with torch.no_grad():\n    model(x)\n",
        "with torch.inference_mode(), torch.autocast('cuda'):\n    y = self.model(x)\n",
        "@torch.no_grad()\ndef sample():\n    return model(x)\n",
        "def test(model):\n    return model(x)\ntest(model)\n",
        "def validate_epoch(loader):\n    for x in loader:\n        net(x)\nvalidate_epoch(loader)\n",
    ],
)
def test_an_evaluation_that_did_not_run_is_found(tmp_path: Path, code: str) -> None:
    assert found_in(tmp_path, code) == f"train.py:{10 if code.startswith('@') else 9}"


@pytest.mark.parametrize(
    "code",
    [
        "",
        "with torch.no_grad():\n    for a, b in zip(average.parameters(), model.parameters()):\n        a.mul_(0.9).add_(b)\n",
        "with torch.no_grad():\n    print(torch.cat(losses).mean().item())\n",
        "def validate(arguments):\n    if not arguments:\n        raise ValueError('missing')\nvalidate(arguments)\n",
        "def test(model):\n    return model(x)\n",
        "size = eval('2 * 3')\n",
        "class Blur:\n    def __call__(self, image):\n        with torch.no_grad():\n            return self.blur(image)\n",
        "frame.eval('a + b')\n",
        "test_loader(1)\n",
    ],
)
def test_other_code_is_not_an_evaluation(tmp_path: Path, code: str) -> None:
    assert found_in(tmp_path, code) == ""


def test_an_evaluation_that_ran_is_not_reported(tmp_path: Path) -> None:
    code = "model.eval()\nwith torch.no_grad():\n    model(x)\ndef test():\n    model(x)\ntest()\n"
    assert found_in(tmp_path, code) == "train.py:9"
    assert found_in(tmp_path, code, (9,)) == "train.py:12"
    assert found_in(tmp_path, code, (9, 13)) == "train.py:10"
    assert found_in(tmp_path, code, (9, 10, 13)) == ""


def test_a_function_whose_name_is_an_evaluation_comes_first(tmp_path: Path) -> None:
    code = "@torch.no_grad()\ndef sample():\n    model(x)\ndef evaluate():\n    model(x)\nevaluate()\n"
    assert found_in(tmp_path, code) == "train.py:12"


def test_a_function_in_another_file_is_found(tmp_path: Path) -> None:
    module = "def evaluate(model):\n    return model(1)\nif __name__ == '__main__':\n    model.eval()\n"
    assert found_in(tmp_path, "evaluate(model)\n", module=module) == "helpers.py:1"
    assert found_in(tmp_path, "", module=module) == ""


def test_the_else_block_of_the_main_block_of_a_module_runs(tmp_path: Path) -> None:
    module = "if __name__ == '__main__':\n    model.eval()\nelse:\n    model.eval()\n"
    assert found_in(tmp_path, "", module=module) == "helpers.py:4"


@pytest.fixture
def recorded() -> Iterator[ExecutedLines]:
    saved = torch.no_grad.__enter__, torch.inference_mode.__enter__, nn.Module.eval
    lines = ExecutedLines()
    lines.record()
    yield lines
    torch.no_grad.__enter__, torch.inference_mode.__enter__, nn.Module.eval = saved  # type: ignore[method-assign]


def test_the_lines_that_evaluate_are_recorded(recorded: ExecutedLines, tmp_path: Path) -> None:
    path = str(tmp_path / "train.py")
    code = "model.eval()\nwith torch.no_grad():\n    pass\nwith torch.inference_mode():\n    pass\nmodel.train()\n"
    exec(compile(code, path, "exec"), {"torch": torch, "model": nn.Linear(2, 2)})
    kinds.pop(path, None)
    assert {line for file, line in recorded.lines if file == path} == {1, 2, 4}
    assert not any(file.startswith(torch.__path__[0]) for file, _ in recorded.lines)


SHARED = """
def iteration(data, {flag}=True):
    loss = model(data).sum()
    if {flag}:
        loss.backward()

iteration(data)
iteration({call})
"""


@pytest.mark.parametrize(
    ("flag", "call"),
    [("train", "data, train=False"), ("train", "data, False"), ("is_training", "data, is_training=False")],
)
def test_a_call_of_a_training_function_without_a_backward_pass_is_an_evaluation(
    flag: str, call: str, tmp_path: Path
) -> None:
    code = SHARED.format(flag=flag, call=call)
    line = (TRAINING + code).splitlines().index(f"iteration({call})") + 1
    assert found_in(tmp_path, f"# eval{code}") == f"train.py:{line}"


@pytest.mark.parametrize("call", ["data", "data, True", "data, train=is_first"])
def test_a_call_that_trains_is_not_an_evaluation(call: str, tmp_path: Path) -> None:
    code = SHARED.format(flag="train", call=call)
    assert found_in(tmp_path, f"# eval{code}MNIST(root, train=False)\n") == ""


@pytest.mark.parametrize(
    ("module", "is_parsed"),
    [
        ("value = latest(contest, interval, medieval)\n", False),
        ("for x in val_loader:\n    run(x, False)\n", True),
        ("def epoch(train):\n    loss.backward()\n", True),
        ("def test2():\n    pass\n", True),
    ],
)
def test_only_files_that_may_contain_an_evaluation_are_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, is_parsed: bool
) -> None:
    parsed: list[str] = []
    parse = evaluations.parse
    monkeypatch.setattr(evaluations, "parse", lambda file: (parsed.append(file), parse(file))[1])
    found_in(tmp_path, "", module=module)
    assert (str(tmp_path / "helpers.py") in parsed) == is_parsed
