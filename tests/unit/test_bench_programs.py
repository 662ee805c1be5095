"""Every bench program describes itself, and `make rules` includes every data file of the CUDA rules."""

import ast
from pathlib import Path

import pytest
from bench.__main__ import QUICK, ROOT, WITH_A_GPU, programs
from bench.rules.rebuild import STEPS

import legroom.observe.cuda_rules


@pytest.mark.parametrize("name", [name for name, _ in programs()])
def test_every_program_states_what_it_measures_and_its_command_line(name: str) -> None:
    doc = ast.get_docstring(ast.parse((ROOT / f"{name.replace('.', '/')}.py").read_text())) or ""
    summary = doc.partition("\n\n")[0]
    assert summary.endswith(".")
    assert f"python -m bench.{name}" in doc


def test_the_quick_programs_exist() -> None:
    assert {*QUICK, *WITH_A_GPU} <= {name for name, _ in programs()}


def test_make_rules_rebuilds_every_shipped_data_file() -> None:
    folder = Path(legroom.observe.cuda_rules.__file__).parent
    assert {step.ships for step in STEPS if step.ships is not None} == set(folder.rglob("*.xz"))
