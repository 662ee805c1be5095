"""Runs unmodified public training programs on the GPU of this machine and compares their peaks with the estimates.

    python -m bench.first_contact.measured_programs CHECKOUTS [--only WORD ...] [--gpu h200] [--jobs 4] [--write FILE.md] [--seconds 120]

CHECKOUTS is a folder with clones of the repositories that `programs.py` names. The data that a program would download
is generated. `measured` is the peak that `legroom run` recorded on the GPU, and `predicted` is the peak that `legroom
estimate` reports. An estimate is right if the peaks of allocated memory differ by at most 5% or 4 MiB, and the
measured peak of reserved memory does not exceed the safe bound. With `cudnn.benchmark`, cuDNN tries kernels that use
all free memory, so the peaks are not compared.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.first_contact.programs import PROGRAMS, Program
from bench.first_contact.public_programs import ROUNDING, Trial, program_key
from bench.lib.command_line import command_line
from bench.lib.table import markdown_table, print_table
from legroom.units import MiB

HEADER = ("program", "measured MiB", "predicted MiB", "error", "reserved / safe MiB", "result")


def measure(program: Program, checkouts: Path, python: str, gpu: str, seconds: float) -> list[str]:
    """Return one row of the table."""
    trial = Trial(program, checkouts, python, seconds)
    try:
        run, estimate = trial.legroom("run"), trial.legroom("estimate", "--gpu", gpu)
    finally:
        trial.close()
    row = [program_key(program)]
    if run.document is None or run.code != 0:
        return [*row, "-", "-", "-", "-", f"not measured: {run.last_line}"]
    if estimate.document is None:
        return [
            *row,
            _mib(run.document["peak_allocated_bytes"]),
            "-",
            "-",
            "-",
            f"refused: {estimate.last_line}",
        ]
    return [*row, *_compare(run.document, estimate.document)]


def _compare(run: dict[str, Any], estimate: dict[str, Any]) -> list[str]:
    measured, predicted = run["peak_allocated_bytes"], estimate["peak_allocated_bytes"]
    outside = estimate["peak_device_bytes"] - estimate["peak_reserved_bytes"]
    reserved, safe = run["peak_reserved_bytes"], estimate["safe_bytes"] - outside
    is_near = abs(predicted - measured) <= max(0.05 * measured, ROUNDING)
    wrong = "" if is_near else "wrong: the peaks differ"
    if safe + outside >= estimate["capacity_bytes"]:
        wrong = ""
    elif not measured:
        return ["-", _mib(predicted), "-", "-", "not measured: other processes of the program use the GPU"]
    if reserved > safe:
        wrong = "wrong: above the safe bound"
    error = f"{predicted / measured - 1:+.1%}" if measured else "-"
    return [_mib(measured), _mib(predicted), error, f"{_mib(reserved)} / {_mib(safe)}", wrong or "right"]


def _mib(size: int) -> str:
    return f"{size / MiB:.1f}"


def main(argv: list[str]) -> int:
    parser = command_line(__doc__)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--gpu", default="h200", help="the name of this GPU")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--write", type=Path, help="Markdown file for the table")
    options = parser.parse_args(argv)
    programs = [
        program
        for program in PROGRAMS
        if program.alone and program.gpu and (options.checkouts / program.repository).is_dir()
        if not options.only or any(word in program_key(program) for word in options.only)
    ]

    def row(program: Program) -> list[str]:
        done = measure(program, options.checkouts, options.python, options.gpu, options.seconds)
        print(*done, sep=" | ", flush=True)
        return done

    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(row, programs))
    print_table("Public programs on this GPU", list(HEADER), rows)
    counts = [
        sum(row[-1].startswith(kind) for row in rows)
        for kind in ("right", "wrong", "refused", "not measured")
    ]
    total = "{} right, {} wrong, {} refused, {} not measured".format(*counts)
    print(total)
    if options.write:
        lines = ["# Public programs on a GPU", "", total + ".", "", *markdown_table(HEADER, rows)]
        options.write.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
