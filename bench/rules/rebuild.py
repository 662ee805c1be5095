"""Rebuilds every table and model that Legroom ships for CUDA, and checks the rules that were fitted by hand (`make
rules`).

    python -m bench.rules.rebuild [--recordings build/rules] [--check]

Steps whose recordings are in the folder do not need a GPU. A step without recordings is skipped, and the command that
records them is printed. `--check` writes nothing and exits with 1 if a rebuilt file differs from the shipped file. See
bench/rules/README.md.
"""

import filecmp
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.accuracy import allocator_replay
from bench.lib.command_line import command_line
from bench.rules.convolution import table
from bench.rules.recordings import RECORDINGS, read_versions
from bench.rules.recurrent import compare as recurrent
from legroom.observe.cuda_rules.convolution.decision_forest import FOREST
from legroom.observe.cuda_rules.convolution.recorded_table import TABLE
from legroom.observe.cuda_rules.versions import RULES_VERSION


@dataclass(frozen=True)
class Step:
    """One shipped file, or one set of rules that was fitted by hand."""

    name: str
    folder: str
    """The folder of the recordings for this step, below the folder of all recordings."""
    pattern: str
    record: str
    """The command that records on an H200. `{out}` is replaced by the folder."""
    run: Callable[[list[Path], Path], object]
    """A function that is called with the folders of recordings and the file to write."""
    ships: Path | None = None
    """The file that the step writes. If None, the rules are Python code, and the step only checks them."""
    needs_recordings: bool = True


def _build_forest(folders: list[Path], out: Path) -> object:
    from bench.rules.convolution import forest  # needs scikit-learn

    return forest.main([*map(str, folders), "--out", str(out)])


def _compare_operations(folders: list[Path], _: Path) -> object:
    from bench.rules.operations import compare  # needs torchvision

    return [compare.main([str(folder)]) for folder in folders]


def _compare_sweep(folders: list[Path], _: Path) -> object:
    from bench.sweep import operations

    return [operations.main(["compare", str(folder), "--again"]) for folder in folders]


STEPS = (
    Step(
        "convolution table",
        "convolution-table",
        "convolutions-*.jsonl.gz",
        "for round in 1 2 3 4 5; do python -m bench.rules.convolution.survey {out} --round $round; done",
        lambda folders, out: table.main([*map(str, folders), "--out", str(out)]),
        ships=TABLE,
        needs_recordings=False,  # the table itself contains every measurement
    ),
    Step(
        "convolution forest",
        "convolution-answers",
        "answers-*.jsonl.gz",
        "python -m bench.rules.convolution.ask_cudnn --handle --survey 150 --out {out}",
        _build_forest,
        ships=FOREST,
    ),
    Step(
        "recurrent layers (cuda_rules/recurrent/sizes.py, fitted by hand)",
        "recurrent",
        "recurrent-*.jsonl.gz",
        "python -m bench.rules.recurrent.survey {out}",
        lambda folders, _: [recurrent.main([str(folder)]) for folder in folders],
    ),
    Step(
        "single operations (cuda_rules/ops, written by hand)",
        "operations",
        "operations-*.jsonl.gz",
        "python -m bench.rules.operations.measure operations {out}",
        _compare_operations,
    ),
    Step(
        "sweep of all operations (cuda_rules, written by hand)",
        "sweep",
        "measured.jsonl.gz",
        "python -m bench.sweep.operations measure {out}",
        _compare_sweep,
    ),
    Step(
        "allocator (memory/allocator, written by hand)",
        "histories",
        "*.json.gz",
        "python tests/gpu/record_histories.py {out}",
        lambda folders, _: allocator_replay.main(list(map(str, folders))),
        needs_recordings=False,  # tests/data/histories has recordings
    ),
)


def main(argv: list[str]) -> int:
    parser = command_line(__doc__)
    parser.add_argument("--recordings", type=Path, default=RECORDINGS)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 if a file would change"
    )
    options = parser.parse_args(argv)
    outcomes = [_run(step, options.recordings, check=options.check) for step in STEPS]
    print("\nRules:")
    for step, outcome in zip(STEPS, outcomes, strict=True):
        print(f"- {step.name}: {outcome}")
    print(f"RULES_VERSION: torch {RULES_VERSION.torch}, cuDNN {RULES_VERSION.cudnn}, {RULES_VERSION.gpu}")
    for step in STEPS:
        if versions := read_versions(options.recordings / step.folder):
            print(f"{step.folder} was recorded with {versions}. Update RULES_VERSION if it differs.")
    return 1 if options.check and any("differs" in outcome for outcome in outcomes) else 0


def _run(step: Step, recordings: Path, *, check: bool) -> str:
    """Run one step, and return a line that describes the result."""
    print(f"\n=== {step.name}", flush=True)
    folder = recordings / step.folder
    recorded = [folder] if list(folder.glob(step.pattern)) else []
    if step.needs_recordings and not recorded:
        return (
            f"skipped: no recordings in {folder} (they are not in the repository). "
            f"On an H200, record them with `{step.record.format(out=folder)}`."
        )
    with tempfile.TemporaryDirectory() as temporary:
        # the file name must be the same, because gzip stores it in the header
        out = Path(temporary) / (step.ships.name if step.ships is not None else "unused")
        step.run(recorded, out)
        if step.ships is None:
            return "checked, see above"
        if filecmp.cmp(out, step.ships, shallow=False):
            return f"rebuilt, {step.ships.name} is identical byte for byte"
        if check:
            return f"rebuilt, differs from the shipped {step.ships.name}"
        shutil.copyfile(out, step.ships)
        return f"rebuilt, {step.ships.name} updated"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
