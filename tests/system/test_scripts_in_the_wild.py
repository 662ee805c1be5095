"""Typical CUDA scripts run unmodified on a virtual GPU and print the same output as on the CPU.

The scripts are in scripts_in_the_wild/. Each script runs once, in a fork of one process (see `wild_harness`). The
tests compare the outputs. Lines that begin with "memory" depend on the device and are not compared.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from legroom.units import parse_size

HERE = Path(__file__).parent
NAMES = sorted(path.stem for path in (HERE / "scripts_in_the_wild").glob("*.py"))
SIZES = {"oom_halving": "96MiB", "oom_dies": "96MiB", "model_parallel": "2GiB,2GiB", "data_parallel": "2GiB"}
NEEDS = {
    "hf_loop": ["transformers"],
    "hf_trainer": ["transformers", "accelerate"],
    "accelerate_loop": ["accelerate"],
}
FAILS = {"oom_dies"}


@dataclass(frozen=True)
class ScriptResult:
    """The results of the two runs of a script."""

    exit_codes: tuple[int, int]
    """The exit codes on the virtual GPU and on the CPU."""
    on_gpu: list[str]
    on_cpu: list[str]
    errors: str
    """The stderr of the run on the virtual GPU."""
    report: dict[str, Any]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], ScriptResult]]:
    """Runs a script when a test first needs it. All runs are forks of one process."""
    folder = tmp_path_factory.mktemp("wild")
    command = [sys.executable, HERE / "wild_harness.py", folder]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    ) as harness:
        assert harness.stdin is not None
        assert harness.stdout is not None

        @cache
        def ran(name: str) -> ScriptResult:
            if missing := _missing(name):
                pytest.skip(f"{missing} is not installed")
            print(json.dumps([name, SIZES.get(name, "2GiB")]), file=harness.stdin, flush=True)
            assert harness.stdout.readline() == f"{name}\n", "the harness has failed"
            found = json.loads((folder / f"{name}.json").read_text())
            return ScriptResult(
                (found["virtual"], found["cpu"]),
                (folder / f"{name}.virtual.out").read_text().splitlines(),
                (folder / f"{name}.cpu.out").read_text().splitlines(),
                (folder / f"{name}.virtual.err").read_text(),
                found["report"],
            )

        yield ran


@pytest.mark.parametrize("name", [name for name in NAMES if name not in FAILS])
def test_script_prints_the_same_on_a_virtual_gpu_as_on_the_cpu(
    name: str, ran: Callable[[str], ScriptResult]
) -> None:
    run = ran(name)
    assert run.exit_codes == (0, 0), run.errors
    assert _compared(run.on_gpu) == _compared(run.on_cpu)
    assert _is_plausible(run.report, name)


def test_script_that_runs_out_of_memory_fails_after_the_same_output(
    ran: Callable[[str], ScriptResult],
) -> None:
    run = ran("oom_dies")
    assert run.exit_codes == (1, 0)
    assert run.report["oom"]["file"].endswith("oom_dies.py")
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate" in run.errors
    assert 0 < len(run.on_gpu) < len(run.on_cpu)
    assert run.on_gpu == run.on_cpu[: len(run.on_gpu)]
    assert _is_plausible(run.report, "oom_dies")


def test_script_that_halves_its_batch_after_an_oom_continues(ran: Callable[[str], ScriptResult]) -> None:
    figures = [line for line in ran("oom_halving").on_gpu if line.startswith("memory")]
    assert "after [8192" in figures[0]
    assert "ran out after" in figures[1]


def test_checkpointing_lowers_the_peak(ran: Callable[[str], ScriptResult]) -> None:
    figures = [line.split() for line in ran("checkpoint_both_modes").on_gpu if line.startswith("memory")]
    peaks = {words[1]: int(words[2]) for words in figures[:3]}
    assert peaks["reentrant"] < peaks["plain"]
    assert peaks["non-reentrant"] < peaks["plain"]


def _compared(lines: list[str]) -> list[str]:
    return [line for line in lines if not line.startswith("memory")]


def _missing(name: str) -> str:
    """Return the first library that the script needs and that is not installed, or ""."""
    return next((library for library in NEEDS.get(name, ()) if find_spec(library) is None), "")


def _is_plausible(report: dict[str, Any], name: str) -> bool:
    size = parse_size(SIZES.get(name, "2GiB").split(",")[0])
    allocated, reserved = report["peak_allocated_bytes"], report["peak_reserved_bytes"]
    return 0 < allocated <= reserved <= size
