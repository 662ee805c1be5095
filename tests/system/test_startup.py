"""`LEGROOM=1 python train.py` runs the script under `legroom run`; without LEGROOM nothing changes."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from legroom.startup import legroom_command

REPOSITORY = Path(__file__).parents[2]


def installed_line() -> str:
    """The line that setup.py writes to `legroom.pth`."""
    for node in ast.parse((REPOSITORY / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LINE":
            return str(ast.literal_eval(node.value))
    raise AssertionError("setup.py has no LINE")


def run_python(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a new interpreter that reads `legroom.pth` at startup, as if it were in site-packages."""
    (folder / "legroom.pth").write_text(installed_line())
    (folder / "sitecustomize.py").write_text(f"import site\nsite.addsitedir({str(folder)!r})\n")
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", **variables}
    environment.pop("LEGROOM", None) if "LEGROOM" not in variables else None
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )


def test_an_out_of_memory_error_is_reported(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\nkept = []\nfor _ in range(100):\n    kept.append(torch.ones(1 << 20, device='cuda'))\n"
    )
    done = run_python(tmp_path, "train.py", LEGROOM="32MiB")
    assert done.returncode == 1
    assert "Out of memory at step 0" in done.stderr
    assert "kept (list, " in done.stderr
    assert "torch.OutOfMemoryError" in done.stderr


def test_without_the_variable_the_script_runs_unchanged(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("import sys\nprint('legroom' in sys.modules, sys.argv)\n")
    done = run_python(tmp_path, "plain.py", "--epochs", "3")
    assert done.stdout == "False ['plain.py', '--epochs', '3']\n"
    assert done.stderr == ""


@pytest.mark.parametrize("words", [["-c", "print(1)"], ["-m", "pip", "--version"], []])
def test_commands_without_a_script_run_unchanged(words: list[str]) -> None:
    assert legroom_command(["python", *words], "1") is None


@pytest.mark.parametrize("value", ["0", "", "off"])
def test_startup_can_be_disabled(value: str) -> None:
    assert legroom_command(["python", "train.py"], value) is None


def test_interpreter_options_stay_before_the_command() -> None:
    words = ["python", "-u", "-W", "ignore", "train.py", "-m", "x"]
    assert legroom_command(words, "1") == [
        sys.executable, "-u", "-W", "ignore", "-m", "legroom", "run", "train.py", "-m", "x",
    ]  # fmt: skip


def test_a_size_selects_a_virtual_gpu() -> None:
    assert legroom_command(["python", "-m", "package.train"], "8GiB") == [
        sys.executable, "-m", "legroom", "run", "--gpu", "8GiB", "-m", "package.train",
    ]  # fmt: skip
