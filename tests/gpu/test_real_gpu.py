"""Scripts on a real GPU, first with only the CUDA history, then with `legroom run`."""

from pathlib import Path

import pytest
from tests.gpu import runs


@pytest.mark.parametrize("name", runs.CHECKS)
def test_the_history_of_a_run_agrees_with_torch(name: str, tmp_path: Path) -> None:
    run = runs.watch(name, tmp_path)
    wrong = [
        f"{what}: {figures}"
        for what, right, figures in (*runs.agreement(run), *runs.CHECKS[name](run))
        if not right
    ]
    assert not wrong, run.output


@pytest.mark.parametrize("name", runs.CHECKS)
def test_the_report_of_the_command_agrees_with_the_run(name: str, tmp_path: Path) -> None:
    run = runs.command(name, tmp_path)
    wrong = [
        f"{what}: {figures}"
        for what, right, figures in (*runs.CHECKS[name](run), *runs.report(run))
        if not right
    ]
    assert not wrong, run.output
