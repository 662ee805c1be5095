"""Runs unmodified public training programs with each command and prints which results are right, wrong or refused.

    python -m bench.first_contact.public_programs CHECKOUTS [--only WORD ...] [--python PYTHON] [--write FILE.json] [--missing] [--seconds 120]

CHECKOUTS is a folder with clones of the repositories that `programs.py` names. Every command runs in a new copy of the
program. Data that a program would download is generated with random contents. For each program:

- `run`: on a virtual GPU of 24 GiB. The result is right if the program ends as with `python`, writes the same files as
  with `python`, and uses GPU memory.
- `run too small`: on a virtual GPU with 85% of the memory that was allocated at the peak of `run`. The result is right if
  the program runs out of memory and the report contains the same line of the program as the traceback. In the backward
  pass, the report must contain a line of the program whose backward failed. If the program catches the error and
  finishes, the report must contain the error with a line of the program.
- `estimate`: the result is right if the verdict is `fits` for a GPU with 10% more than `run` reserved plus the workspaces
  of CUDA kernels, which a virtual GPU does not count. The predicted peak must also be larger than the GPU of
  `run too small`.
- `peak`: the predicted peak without the workspaces, compared with the peak of `run`. The result is `off` if the peaks
  differ by more than 5% and 4 MiB, by which the allocator may round differently.
- `launch`: for programs that support several processes, on two virtual GPUs. The result is right if every rank finishes
  and uses GPU memory, and the peaks that `--dry-run` predicts are right.
- `files`: the number of files of the copy that changed while `estimate` ran.
"""

import contextlib
import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.first_contact.programs import OMITTED, PROGRAMS, Program
from bench.lib.command_line import command_line
from bench.lib.table import markdown_table, print_table
from legroom.units import KiB, MiB

LARGE = "24GiB"
WORKSPACES = 64 * MiB
"""An upper bound for the workspaces of cuBLAS and cuDNN in most of these programs."""
ROUNDING = 4 * MiB
"""The tolerance for rounding. The allocator rounds up blocks depending on neighboring blocks, which workspaces
change."""
COLUMNS = ("run", "run too small", "estimate", "launch", "peak", "files", "seconds")
VERBS = COLUMNS[:4]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one command."""

    code: int | None
    """The exit code, or None if the command exceeded the time limit."""
    out: str
    error: str
    seconds: float
    changed: frozenset[str]
    """The files of the copy that were created, changed or removed."""

    @property
    def document(self) -> dict[str, Any] | None:
        """The JSON document on standard output."""
        try:
            found = json.loads(self.out)
        except ValueError:
            return None
        return found if isinstance(found, dict) else None

    @property
    def last_line(self) -> str:
        lines = [line.strip() for line in self.error.splitlines() if line.strip()]
        return "no answer in time" if self.code is None else lines[-1][:110] if lines else f"exit {self.code}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change for one command: other arguments of the program, environment variables, edited files."""

    arguments: tuple[str, ...] | None = None
    """The arguments of the program, without the script. If None, the default arguments are used."""
    environment: dict[str, str] = field(default_factory=dict)
    edits: dict[str, str] = field(default_factory=dict)
    """New contents of files, by their path in the copy."""


class Trial:
    """One program. Each command runs in a new copy of the program."""

    def __init__(self, program: Program, checkouts: Path, python: str, seconds: float) -> None:
        self.program = program
        self._python, self._seconds = python, seconds
        self._temporary = tempfile.TemporaryDirectory(prefix="first-contact-")
        folder = Path(self._temporary.name).resolve()
        self.pristine, self._captures = folder / "pristine", folder / "captures"
        self.root = folder / program.repository
        for part in program.copy.split():
            shutil.copytree(
                checkouts / program.repository / part, self.pristine / part, symlinks=True, dirs_exist_ok=True,
                ignore=shutil.ignore_patterns(".git", "__pycache__", "*.ipynb"),
            )  # fmt: skip
        if program.prepare is not None:
            program.prepare(self.pristine / program.folder)

    def python(self) -> Outcome:
        return self._start([self._python])

    @property
    def capture(self) -> Path:
        """The capture of the last `legroom run`."""
        return self._captures / "program.legroom"

    def legroom(self, verb: str, *options: str, change: Change | None = None) -> Outcome:
        """Run the program with `legroom VERB … --format json`. Captures are written outside the copy."""
        shutil.rmtree(self._captures, ignore_errors=True)
        self._captures.mkdir()
        captures = str(self.capture)
        where = {"run": ["-o", captures], "launch": ["--logs", captures]}.get(verb, [])
        command = [self._python, "-m", "legroom", verb, *options, "--format", "json", *where]
        return self._start(command, change or Change())

    def _start(self, command: list[str], change: Change = Change()) -> Outcome:  # noqa: B008
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.pristine, self.root, symlinks=True)
        for path, text in change.edits.items():
            (self.root / path).write_text(text)
        before = self._files()
        paths = [str(self.root), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ, "OMP_NUM_THREADS": "2", "MPLBACKEND": "agg", "LEGROOM_CACHE": "off", "WANDB_MODE": "disabled",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)), **change.environment,
        }  # fmt: skip
        script, *arguments = self.program.arguments.split()
        if change.arguments is not None:
            arguments = list(change.arguments)
        began = time.monotonic()
        process = subprocess.Popen(
            [*command, script, *arguments], cwd=self.root / self.program.folder, env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, errors="replace",
            start_new_session=True,
        )  # fmt: skip
        code: int | None = None
        try:
            out, error = process.communicate(timeout=self._seconds)
            code = process.returncode
        except subprocess.TimeoutExpired:
            _kill_group(process)
            out, error = process.communicate()
        finally:
            _kill_group(process)
        seconds = time.monotonic() - began
        after = self._files()
        changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        return Outcome(code=code, out=out, error=error, seconds=seconds, changed=frozenset(changed))

    def _files(self) -> dict[str, tuple[int, int]]:
        """Return every file of the copy with its size and modification time."""
        return {
            str(path.relative_to(self.root)): (path.lstat().st_size, path.lstat().st_mtime_ns)
            for path in self.root.rglob("*")
            if not path.is_dir() and "__pycache__" not in path.parts
        }

    def failing_line(self, outcome: Outcome) -> str:
        """Return the innermost line of the program in the traceback of the last OutOfMemoryError, as `file:line`, or
        "" if there is no such error."""
        until_oom = outcome.error.rpartition("OutOfMemoryError: ")[0]
        last = until_oom.rpartition("Traceback (most recent call last)")[2]
        frames = re.findall(r'File "([^"]+)", line (\d+)', last)
        inside = [f"{file}:{line}" for file, line in frames if Path(file).is_relative_to(self.root)]
        return inside[-1] if inside else ""

    def close(self) -> None:
        self._temporary.cleanup()


def _kill_group(process: subprocess.Popen[str]) -> None:
    """Kill the process and the processes that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _size(size: float) -> str:
    return f"{max(1, int(size) // KiB)}KiB"


def _normalised(names: frozenset[str]) -> set[str]:
    """Return the file names without numbers. The numbers may be dates, process IDs or losses."""
    return {re.sub(r"[0-9][0-9.e+-]*", "#", name) for name in names}


def run_python(trial: Trial) -> dict[str, Any]:
    """Run the program without Legroom. Return its exit code, the names of the files that it wrote, and the last line
    of its error."""
    done = trial.python()
    return {"code": done.code, "files": sorted(_normalised(done.changed)), "error": done.last_line}


def check_run(trial: Trial, done: Outcome, reference: dict[str, Any]) -> str:
    document = done.document
    if done.code != 0 or document is None:
        if reference["code"] not in (0, None) and reference["error"] == done.last_line:
            return f"python fails too: {done.last_line}"
        if reference["code"] is None and done.code is None:
            return "python needs too long too"
        if "CUDA" in reference["error"]:
            return f"fails; python needs a GPU to compare: {done.last_line}"
        return f"wrong: {done.last_line}"
    if trial.program.gpu != (document["peak_allocated_bytes"] > 0):
        return f"wrong: peak of {document['peak_allocated_bytes']} bytes"
    if reference["code"] == 0:
        missing = set(reference["files"]) - _normalised(done.changed)
        if missing:
            return f"wrong: did not write {sorted(missing)[0]}"
    return "right"


def check_too_small(trial: Trial, done: Outcome) -> str:
    document = done.document
    if done.code is None or document is None:
        return f"wrong: {done.last_line}"
    oom = document.get("oom")
    if done.code == 0:  # the program caught the error and continued
        return (
            "right"
            if oom is not None and _source(f"{oom['file']}:{oom['line']}").strip()
            else "wrong: finished"
        )
    if oom is None:
        return f"wrong: no OOM report: {done.last_line}"
    place, expected = f"{oom['file']}:{oom['line']}", trial.failing_line(done)
    if oom["phase"] == "backward" and "backward" in _source(expected):
        # The report names the line of the forward pass whose backward failed.
        if not _source(place).strip():
            return f"wrong: names {place} for the backward pass"
    elif not expected.endswith(place.removeprefix("./")):
        return f"wrong: names {place}, traceback {expected.rpartition('/')[2]}"
    return "right"


def _source(place: str) -> str:
    """Return the source line at `file:line`, or "" if there is none."""
    file, _, line = place.rpartition(":")
    try:
        return Path(file).read_text().splitlines()[int(line) - 1]
    except (OSError, ValueError, IndexError):
        return ""


def check_estimate(done: Outcome, too_small: float, reference: dict[str, Any]) -> str:
    document = done.document
    if document is None:
        fails = reference["code"] not in (0, None) and "The script failed" in done.last_line
        return "python fails too" if fails else f"refused: {done.last_line}"
    if document["verdict"] != "fits":
        return f"wrong: {document['verdict']} instead of fits"
    return (
        "right"
        if document["peak_allocated_bytes"] > too_small
        else "wrong: would fit on the GPU that is too small"
    )


def compare_peak(predicted: dict[str, Any], measured: int) -> str:
    """Compare the predicted peak without workspaces with the measured peak. The two peaks may be at different times."""
    high = predicted["peak_allocated_bytes"]
    low = high - _workspace(predicted)
    error = low - measured if low > measured else min(high - measured, 0)
    is_off = abs(error) > max(0.05 * measured, ROUNDING)
    return f"{_mib(low)} / {_mib(measured)} MiB" + (f", off {error / measured:+.0%}" if is_off else "")


def _mib(size: int) -> str:
    return f"{size / MiB:.3g}"


def check_launch(trial: Trial, capacity: str) -> str:
    done = trial.legroom("launch", "--nproc", "2", "--gpu", capacity)
    document = done.document
    if document is None or done.code != 0:
        first = document["first_failure"] if document else None
        errors = [rank["error"] for rank in document["ranks"] if rank["rank"] == first] if document else []
        return f"wrong: {errors[0].splitlines()[0][:110] if any(errors) else done.last_line}"
    peaks = [rank["peak_allocated_bytes"] for rank in document["ranks"]]
    if len(peaks) != 2 or not all(peaks):
        return f"wrong: peaks {peaks}"
    planned = trial.legroom("launch", "--nproc", "2", "--gpu", capacity, "--dry-run")
    plan = planned.document
    if plan is None:
        return f"wrong: dry run: {planned.last_line}"
    for rank, peak in zip(plan["ranks"], peaks, strict=True):
        if rank["error"]:
            return f"refused: dry run: {rank['error'].splitlines()[0][:110]}"
        compared = compare_peak(rank, peak)
        if rank["verdict"] != "fits" or "off" in compared:
            return f"wrong: dry run: {rank['verdict']}, {compared}"
    return "right"


def try_program(trial: Trial, reference: dict[str, Any] | None) -> dict[str, Any]:
    """Return a cell for each column: `right`, `wrong: …`, `refused: …` or `-`. `reference` is the run without Legroom
    from an earlier table."""
    program = trial.program
    row: dict[str, Any] = dict.fromkeys(COLUMNS, "-")
    began = time.monotonic()
    if program.alone:
        row["python"] = reference = reference or run_python(trial)
        done = trial.legroom("run", "--gpu", LARGE)
        row["run"] = check_run(trial, done, reference)
        peak = done.document
        if not program.gpu:
            _try_without_gpu(trial, row)
        elif peak is not None and peak["peak_allocated_bytes"]:
            _try_sizes(trial, row, peak["peak_allocated_bytes"], peak["peak_reserved_bytes"])
    row["launch"] = check_launch(trial, LARGE) if program.ranks else "one process"
    row["seconds"] = f"{time.monotonic() - began:.0f}"
    return row


def _try_without_gpu(trial: Trial, row: dict[str, Any]) -> None:
    estimated = trial.legroom("estimate", "--gpu", LARGE)
    named = "used no GPU memory" in estimated.error and estimated.code == 2
    row["estimate"] = "right: no GPU memory" if named else f"wrong: {estimated.last_line}"
    row["files"] = str(len(estimated.changed))


def _try_sizes(trial: Trial, row: dict[str, Any], allocated: int, reserved: int) -> None:
    too_small = 0.85 * allocated
    row["run too small"] = check_too_small(trial, trial.legroom("run", "--gpu", _size(too_small)))
    done = trial.legroom("estimate", "--gpu", _size(1.1 * reserved + WORKSPACES))
    changed = done.changed
    if done.document is not None and _workspace(done.document) > WORKSPACES:
        done = trial.legroom("estimate", "--gpu", _size(1.1 * (reserved + _workspace(done.document))))
    row["estimate"] = check_estimate(done, too_small, row["python"])
    row["files"] = str(len(changed | done.changed))
    if done.document is not None:
        row["peak"] = compare_peak(done.document, allocated)


def _workspace(estimate: dict[str, Any]) -> int:
    size: int = estimate["by_category"].get("workspace", 0)
    return size


def totals(rows: dict[str, dict[str, Any]]) -> list[str]:
    """Return one line per verb with the number of cells that are right, wrong and refused."""
    lines = []
    for verb in VERBS:
        cells = [row[verb] for row in rows.values()]
        counts = [sum(cell.startswith(kind) for cell in cells) for kind in ("right", "wrong", "refused")]
        share = f"{counts[0] / max(sum(counts), 1):.0%}"
        lines.append(f"{verb}: {counts[0]} right, {counts[1]} wrong, {counts[2]} refused ({share} right)")
    peaks = [row["peak"] for row in rows.values() if "/" in row["peak"]]
    lines.append(f"peak within 5%: {sum('off' not in peak for peak in peaks)} of {len(peaks)}")
    changed = sum(int(row["files"]) for row in rows.values() if row["files"].isdigit())
    lines.append(f"files changed by estimate: {changed}")
    return lines


def _torch_version(python: str) -> str:
    command = [python, "-c", "import torch; print(torch.__version__)"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _write(path: Path, rows: dict[str, dict[str, Any]], torch: str) -> None:
    """Write the rows as JSON, and as a table in a Markdown file of the same name."""
    path.write_text(json.dumps(rows, indent=1) + "\n")
    lines = [
        "# Public programs", "",
        f"{datetime.date.today()}, torch {torch}, without a GPU. `python -m bench.first_contact.public_programs --help` explains the columns.",
        "", *(f"- {line}" for line in totals(rows)), "",
        *markdown_table(("program", *COLUMNS), [[name, *(row[column] for column in COLUMNS)] for name, row in rows.items()]),
        "", f"Without a row: {', '.join(name for name in map(program_key, PROGRAMS) if name not in rows) or 'none'}.",
        "", "Not tried:", "", *(f"- {programs}: {why}" for programs, why in OMITTED.items()),
    ]  # fmt: skip
    path.with_suffix(".md").write_text("\n".join(lines) + "\n")


def program_key(program: Program) -> str:
    """Return the name, with the model if several rows have the same script."""
    same = [other for other in PROGRAMS if other.name == program.name]
    return program.name if len(same) == 1 else f"{program.name} ({same.index(program) + 1})"


def main(argv: list[str]) -> int:
    parser = command_line(__doc__)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--write", type=Path, help="JSON file; rows that it has of other programs are kept")
    parser.add_argument(
        "--missing", action="store_true", help="only programs that the file of --write does not have"
    )
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the started processes end as well
    earlier = json.loads(options.write.read_text()) if options.write and options.write.exists() else {}
    rows: dict[str, dict[str, Any]] = {}
    for program in PROGRAMS:
        key = program_key(program)
        if options.only and not any(word in key for word in options.only):
            continue
        if options.missing and key in earlier:
            continue
        if not (options.checkouts / program.repository).is_dir():
            print(f"skipped, {key}: there is no {options.checkouts / program.repository}")
            continue
        trial = Trial(program, options.checkouts, options.python, options.seconds)
        try:
            rows[key] = try_program(trial, earlier.get(key, {}).get("python"))
        finally:
            trial.close()
        print(key, *(rows[key][column] for column in COLUMNS), sep=" | ", flush=True)
        if options.write:
            merged = {**earlier, **rows}
            ordered = {name: merged[name] for name in map(program_key, PROGRAMS) if name in merged}
            _write(options.write, ordered, _torch_version(options.python))
    print_table(
        "Public programs",
        ["program", *COLUMNS],
        [[name, *(row[column] for column in COLUMNS)] for name, row in rows.items()],
    )
    print(*totals(rows), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
