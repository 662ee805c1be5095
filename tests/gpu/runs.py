"""Runs the scripts in this folder, and checks the results.

A check yields its name, its result and details. pytest runs the checks as tests. `python -m tests.gpu.check` prints one
line per check, for a machine with a GPU but without pytest.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from legroom.memory.annotations import GapStarted, HistoryUnavailable, RecordingFailed
from legroom.memory.capture.capture import read_capture
from legroom.memory.event_base import Annotation, Category, Phase
from legroom.memory.events import Alloc
from legroom.memory.ledger import Ledger
from legroom.memory.state import State
from legroom.units import MiB, format_size

SCRIPTS = Path(__file__).parent / "scripts"
ROOT = Path(__file__).parents[2]
Check = Iterator[tuple[str, bool, str]]


@dataclass
class Run:
    """The result of a recorded script."""

    script: Path
    exit_code: int
    output: str
    annotations: list[Annotation]
    ledger: Ledger
    allocs: list[Alloc]
    report: dict[str, Any] | None = None
    """The output of `legroom run --format json`."""

    @property
    def peak(self) -> State:
        return self.ledger.at(self.ledger.peak().index)

    def line(self, mark: str) -> int:
        """Return the number of the line with the comment `# <- MARK`."""
        lines = self.script.read_text().splitlines()
        return next(number for number, text in enumerate(lines, 1) if f"# <- {mark}" in text)


def watch(name: str, folder: Path, snapshots: Path | None = None) -> Run:
    """Run a script and record only its CUDA history."""
    capture = folder / f"{name}.legroom"
    words = ["-m", "tests.gpu.watch", str(capture), str(SCRIPTS / f"{name}.py")]
    done = _python([*words, *([str(snapshots)] if snapshots else [])])
    return _run(name, done, capture)


def command(name: str, folder: Path) -> Run:
    """Run a script with `legroom run`."""
    capture = folder / f"{name}_command.legroom"
    words = ["-m", "legroom", "run", "--format", "json", "--force", "-o", str(capture)]
    done = _python([*words, str(SCRIPTS / f"{name}.py")])
    run = _run(name, done, capture)
    run.report = json.loads(done.stdout)
    return run


def _python(words: list[str]) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _run(name: str, done: "subprocess.CompletedProcess[str]", capture: Path) -> Run:
    output = done.stdout + done.stderr
    if not capture.exists():
        raise AssertionError(f"{name}: no capture\n{output}")
    events = read_capture(capture).events
    return Run(
        SCRIPTS / f"{name}.py",
        done.returncode,
        output,
        [event for event in events if isinstance(event, Annotation)],
        Ledger(events),
        [event for event in events if isinstance(event, Alloc)],
    )


# --- checks of every run


def agreement(run: Run) -> Check:
    """Check that the recorded events agree with torch's statistics, and that the memory at the peak is attributed."""
    failures = [
        str(each) for each in run.annotations if isinstance(each, RecordingFailed | HistoryUnavailable)
    ]
    yield "recording succeeded", not failures, "; ".join(failures)
    steps = run.ledger.steps(0)
    ooms = run.ledger.ooms()
    if steps and not ooms:
        highest = max(step.peak_allocated for step in steps)
        yield (
            "the recorded peak is the peak of the highest step",
            run.ledger.peak().bytes == highest,
            f"{run.ledger.peak().bytes:,} against {highest:,}",
        )
        reserved = max(step.peak_reserved for step in steps)
        yield (
            "the recorded reserved peak is that of the highest step",
            run.ledger.peak(of="reserved").bytes == reserved,
            f"{run.ledger.peak(of='reserved').bytes:,} against {reserved:,}",
        )
    whole = not any(isinstance(each, GapStarted) for each in run.annotations)
    for step in steps if whole else steps[-3:]:
        state = run.ledger.at_step(step.step)
        if state.allocated != step.allocated:
            yield (
                f"step {step.step} ends with the allocated bytes of torch",
                False,
                f"{state.allocated} / {step.allocated}",
            )
    state = run.ledger.at_oom(len(ooms) - 1) if ooms else run.peak
    yield "95 % of the bytes have a line", state.coverage() >= 0.95, f"{state.coverage():.2%}"
    named = {str(c): format_size(size) for c, size in state.by_category().items() if size}
    rest = state.by_category()[Category.TEMPORARY] / max(state.allocated, 1)
    yield "categories at the peak or failure", True, f"{named}, temporary {rest:.2%}"
    for row in state.top(6):
        place = f"{Path(row.file).name}:{row.line}" if row.file else "no line"
        yield f"  {place}", True, f"{format_size(row.bytes)} {row.category} x{row.count} {row.module}"


def healthy(run: Run) -> Check:
    yield "the script succeeds", run.exit_code == 0, str(run.exit_code)
    yield "12 steps", len(run.ledger.steps(0)) == 12, str(len(run.ledger.steps(0)))
    reported = int(run.output.split("peak ")[1].split()[0])
    yield "the script reports the recorded peak", reported == run.ledger.peak().bytes, f"{reported:,}"
    state = run.ledger.at_step(11)
    sizes = state.by_category()
    parameters = sizes[Category.PARAMETER]
    yield "parameters", 40 * MiB < parameters < 60 * MiB, format_size(parameters)
    gradients = sizes[Category.GRADIENT]
    yield (
        "gradients are as large as parameters",
        abs(gradients - parameters) < 0.02 * parameters,
        format_size(gradients),
    )
    adam = sizes[Category.OPTIMIZER_STATE]
    yield (
        "Adam's state is twice as large",
        abs(adam - 2 * parameters) < 0.02 * 2 * parameters,
        format_size(adam),
    )
    at_peak = run.peak.by_category()
    yield (
        "activations dominate the peak",
        at_peak[Category.ACTIVATION] > run.peak.allocated / 2,
        format_size(at_peak[Category.ACTIVATION]),
    )
    batch = 64 * 3 * 64 * 64 * 4
    yield "the batch is input", at_peak[Category.INPUT] >= batch, format_size(at_peak[Category.INPUT])
    rest = at_peak[Category.TEMPORARY] / run.peak.allocated
    yield "temporary memory is small", rest < 0.35, f"{rest:.2%}"


def leak(run: Run) -> Check:
    yield "the script succeeds", run.exit_code == 0, str(run.exit_code)
    growing = run.ledger.growth()
    lines = [row.line for row in growing]
    yield (
        "the line that allocates the retained memory is found",
        run.line("allocates") in lines,
        str(growing[:3]),
    )


def oom_forward(run: Run) -> Check:
    yield from _out_of_memory(run, Phase.FORWARD)
    yield "the script fails", run.exit_code == 1, str(run.exit_code)
    oom = run.ledger.ooms()[0]
    yield "the failing operation is reported", oom.op in ("relu", "linear"), oom.op
    state = run.ledger.at_oom()
    dominant = next(iter(state.by_category()))
    yield "activations use the most memory", dominant is Category.ACTIVATION, str(dominant)


def oom_backward(run: Run) -> Check:
    yield from _out_of_memory(run, Phase.BACKWARD)
    yield "the script fails", run.exit_code == 1, str(run.exit_code)
    oom = run.ledger.ooms()[0]
    yield "the failing module is reported", oom.module.startswith("wide."), f"{oom.module} {oom.op}"


def oom_optimizer(run: Run) -> Check:
    yield from _out_of_memory(run, Phase.OPTIMIZER)
    yield "the script continues", run.exit_code == 0 and "continued" in run.output, str(run.exit_code)
    sizes = run.ledger.at_oom().by_category()
    yield "optimizer state was being created", sizes[Category.OPTIMIZER_STATE] > 0, str(sizes)
    yield "three steps follow", len(run.ledger.steps(0)) == 3, str(len(run.ledger.steps(0)))


def checkpointed(run: Run) -> Check:
    yield "the script succeeds", run.exit_code == 0, str(run.exit_code)
    phases = {alloc.phase for alloc in run.allocs}
    yield "all phases are recorded", phases >= set(Phase), str(sorted(phases))
    inputs = [alloc for alloc in run.allocs if alloc.category is Category.INPUT]
    size = 32 * 256 * 512 * 4
    yield "keyword inputs are recorded", sum(a.bytes == size for a in inputs) >= 5, str(len(inputs))
    recomputed = [a for a in run.allocs if a.phase is Phase.BACKWARD and a.category is Category.ACTIVATION]
    yield "recomputed tensors are activations", len(recomputed) > 20, str(len(recomputed))


def _out_of_memory(run: Run, phase: Phase) -> Check:
    ooms = run.ledger.ooms()
    yield "one error", len(ooms) == 1, str(len(ooms))
    oom = ooms[0]
    yield "in the right phase", oom.phase is phase, f"{oom.phase} {oom.op}"
    line = oom.frame.line if oom.frame else None
    yield "at the right line", line == run.line("runs out"), f"{oom.frame}, expected {run.line('runs out')}"
    yield (
        "with torch's message",
        oom.message.startswith("CUDA out of memory. Tried to allocate"),
        oom.message[:60],
    )
    yield (
        "the limit is the memory fraction",
        oom.limit < 3 << 30 < oom.capacity,
        f"{oom.limit:,} {oom.capacity:,}",
    )
    state = run.ledger.at_oom()
    yield (
        "the allocated bytes agree with torch",
        state.allocated == oom.allocated,
        f"{state.allocated} {oom.allocated}",
    )
    yield (
        "the reserved bytes agree with torch",
        state.reserved == oom.reserved,
        f"{state.reserved} {oom.reserved}",
    )
    parts = oom.allocated + oom.cached + oom.fragmented
    yield "the reserved bytes equal the sum of their parts", parts == oom.reserved, f"{parts} {oom.reserved}"
    yield "holders are reported", bool(run.ledger.holders()), str(run.ledger.holders()[:3])


CHECKS: dict[str, Callable[[Run], Check]] = {
    check.__name__: check for check in (healthy, leak, oom_forward, oom_backward, oom_optimizer, checkpointed)
}


def report(run: Run) -> Check:
    """Check that the report of `legroom run` agrees with the recorded events."""
    assert run.report is not None
    yield "the exit code is the script's", run.report["exit_code"] == run.exit_code, str(run.exit_code)
    yield "steps", run.report["steps"] == len(run.ledger.steps(0)), str(run.report["steps"])
    ooms = run.ledger.ooms()
    oom = run.report["oom"]
    yield "an error is reported if memory ran out", (oom is not None) == bool(ooms), str(oom)[:100]
    if ooms and oom is not None:
        yield "its line", oom["line"] == run.line("runs out"), str(oom["line"])
        yield "advice", bool(oom["advice"]), str(oom["advice"])[:200]
    if "keeps" in run.script.read_text():
        lines = [row["line"] for row in run.report["leaks"]]
        yield "the leak's line", run.line("keeps") in lines, str(run.report["leaks"])[:200]
