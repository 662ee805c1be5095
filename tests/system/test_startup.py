"""`LEGROOM=1 python train.py`: the script runs under watch, and without LEGROOM nothing at all happens."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from legroom.startup import rewritten

REPOSITORY = Path(__file__).parents[2]


def line_that_is_installed() -> str:
    """What setup.py puts into `legroom.pth`."""
    for node in ast.parse((REPOSITORY / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LINE":
            return str(ast.literal_eval(node.value))
    raise AssertionError("setup.py has no LINE")


def python_with_the_file(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that reads `legroom.pth` at its start, as one does from its site-packages."""
    (folder / "legroom.pth").write_text(line_that_is_installed())
    (folder / "sitecustomize.py").write_text(f"import site\nsite.addsitedir({str(folder)!r})\n")
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", **variables}
    environment.pop("LEGROOM", None) if "LEGROOM" not in variables else None
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )


def test_an_out_of_memory_error_is_explained_without_a_wrapper(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\nkept = []\nfor _ in range(100):\n    kept.append(torch.ones(1 << 20, device='cuda'))\n"
    )
    done = python_with_the_file(tmp_path, "train.py", LEGROOM="32MiB")
    assert done.returncode == 1
    assert "Out of memory at step 0" in done.stderr
    assert "kept (list, " in done.stderr
    assert "torch.OutOfMemoryError" in done.stderr


def test_without_the_variable_the_script_runs_alone(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("import sys\nprint('legroom' in sys.modules, sys.argv)\n")
    done = python_with_the_file(tmp_path, "plain.py", "--epochs", "3")
    assert done.stdout == "False ['plain.py', '--epochs', '3']\n"
    assert done.stderr == ""


@pytest.mark.parametrize("words", [["-c", "print(1)"], ["-m", "pip", "--version"], []])
def test_what_is_no_script_is_left_alone(words: list[str]) -> None:
    assert rewritten(["python", *words], "1") is None


@pytest.mark.parametrize("wish", ["0", "", "off"])
def test_it_can_be_switched_off(wish: str) -> None:
    assert rewritten(["python", "train.py"], wish) is None


def test_the_interpreters_own_options_stay_in_front() -> None:
    words = ["python", "-u", "-W", "ignore", "train.py", "-m", "x"]
    assert rewritten(words, "1") == [
        sys.executable, "-u", "-W", "ignore", "-m", "legroom", "run", "train.py", "-m", "x",
    ]  # fmt: skip


def test_a_size_asks_for_a_virtual_gpu() -> None:
    assert rewritten(["python", "-m", "package.train"], "8GiB") == [
        sys.executable, "-m", "legroom", "run", "--gpu", "8GiB", "-m", "package.train",
    ]  # fmt: skip
