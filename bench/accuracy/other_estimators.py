"""What other estimators say of the same training steps: torch's MemTracker, Accelerate's estimate-memory, torchinfo.

    python -m bench.accuracy.other_estimators ANSWERS [--cases fourth] [--jobs 2] [--patience 60]

All look at the model without data. MemTracker watches one whole step under fake tensors (it raises at a second one, where a part of the
model is frozen, and where a value is asked for, as a GradScaler does); Accelerate multiplies the size of the weights by four, which
stands for gradients and Adam; torchinfo adds up weights and outputs, twice the latter for the backward pass.

Each is asked in a process of its own, as some take minutes. Answers are bytes, or None where it cannot do the case or took longer than
`PATIENCE`; they have nothing to do with our code, so that a file of them serves for good.
"""

import argparse
import contextlib
import importlib
import json
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from bench.accuracy.cases.steps import BUILDERS, CASES, Case, build
from bench.accuracy.scored_case import measured
from bench.lib.parallel_tasks import Task, side_by_side

for _name in ("accelerate.commands.estimate", "torchinfo", "transformers"):
    with contextlib.suppress(ImportError):  # before forking, so that not every question imports them
        importlib.import_module(_name)

PATIENCE = 60.0
"""Seconds for one case and one estimator."""


def main(argv: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("answers", type=Path)
    parser.add_argument("--cases", choices=sorted(CASES), action="append")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--patience", type=float, default=PATIENCE, help="seconds for one answer")
    options = parser.parse_args(argv)
    wanted = [
        (half, case)
        for half in options.cases or CASES
        for case in CASES[half]
        if case.key in measured(half, None)
    ]
    ask_all(wanted, Answers(options.answers), options.jobs, options.patience)
    return 0


class Answers:
    """Bytes that others expect, in a file of one JSON object an answer; without a path, none."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self._told = {
            (told["half"], told["key"], told["peer"]): told["bytes"] for told in map(json.loads, lines)
        }

    def has(self, half: str, key: str, peer: str) -> bool:
        return (half, key, peer) in self._told

    def get(self, half: str, key: str, peer: str) -> int | None:
        """None where it cannot say, or was not asked."""
        return self._told.get((half, key, peer))

    def put(self, half: str, key: str, peer: str, answer: int | None) -> None:
        assert self._path is not None, "there is no file to keep answers in"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps({"half": half, "key": key, "peer": peer, "bytes": answer}) + "\n")


def ask_all(
    cases: Iterable[tuple[str, Case]], answers: Answers, jobs: int, patience: float = PATIENCE
) -> None:
    """Every estimator about every case that `answers` has nothing of, into its file."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    tasks = [
        Task(
            f"{case.key}, {peer}",
            partial(_ask, half, case, peer, answers),
            partial(_no_answer, half, case, peer, answers),
        )
        for half, case in cases
        for peer in PEERS
        if not answers.has(half, case.key, peer)
    ]
    side_by_side(tasks, jobs, patience)


def _ask(half: str, case: Case, peer: str, answers: Answers) -> None:
    answer: int | None
    try:
        answer = PEERS[peer](case)
    except ImportError:  # it, or what the case needs, is not installed here: as if it had not been asked
        return
    except Exception:  # each fails in its own ways, and what it cannot do is what is asked
        answer = None
    answers.put(half, case.key, peer, answer)


def _no_answer(half: str, case: Case, peer: str, answers: Answers, why: str) -> None:
    answers.put(half, case.key, peer, None)


def mem_tracker(case: Case) -> int:
    from torch.distributed._tools.mem_tracker import MemTracker

    torch.utils.swap_tensors = _take_over  # `Module.to` swaps fake tensors, which fails
    with FakeTensorMode(allow_non_fake_inputs=True):
        model, optimizer, step = build(case, "cpu")
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        with tracker:
            step()
        peak = tracker.get_tracker_snapshot("peak")
    return max(int(sizes["Total"]) for sizes in peak.values())


def _take_over(tensor: Any, other: Any) -> None:
    tensor.data = other.data


def accelerate_estimate(case: Case) -> int:
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    with torch.device("meta"):
        model = BUILDERS[case.model]().model
    total, _ = calculate_maximum_sizes(model)
    precision = {"amp_fp16": "float16", "amp_bf16": "bfloat16", "bf16": "bfloat16"}.get(
        case.precision, "float32"
    )
    stages = estimate_training_usage(total, precision)
    return max(int(size) for size in stages.values())


def torchinfo_estimate(case: Case) -> int:
    import torchinfo

    with torch.device("meta"):
        spec = BUILDERS[case.model]()
    inputs: Any = spec.batch(case.batch, "meta")[0]
    told = torchinfo.summary(spec.model, input_data=[inputs], device="meta", verbose=0)
    return int(told.total_input + told.total_param_bytes + 2 * told.total_output_bytes)


PEERS: dict[str, Callable[[Case], int]] = {
    "MemTracker": mem_tracker,
    "Accelerate": accelerate_estimate,
    "torchinfo": torchinfo_estimate,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
