"""Runs other estimators on the same training steps: torch's MemTracker, Accelerate's estimate-memory and torchinfo.

    python -m bench.accuracy.other_estimators ANSWERS [--cases unseen-broad] [--jobs 2] [--patience 60]

All estimators analyze the model without running it on data. MemTracker traces one step with fake tensors. MemTracker
fails for frozen parameters and for steps that read values, for example with a GradScaler. Accelerate multiplies the
size of the weights by four, for gradients and Adam. The torchinfo package adds weights and outputs, and counts outputs
twice for the backward pass.

Each result is computed in its own process, because some results take minutes. A result is a number of bytes, or None
if the estimator fails or exceeds `PATIENCE`. Results do not depend on Legroom's code, so the file can be reused.
"""

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

from bench.accuracy.cases.build_step import build
from bench.accuracy.cases.case import Case
from bench.accuracy.cases.sets import BUILDERS, CASES
from bench.accuracy.scored_case import measured
from bench.lib.command_line import command_line
from bench.lib.parallel_tasks import Task, run_parallel

for _name in ("accelerate.commands.estimate", "torchinfo", "transformers"):
    with contextlib.suppress(ImportError):  # imported once before forking, not in every task
        importlib.import_module(_name)

PATIENCE = 60.0
"""The maximum time in seconds for one case and one estimator."""


def main(argv: Sequence[str] = ()) -> int:
    parser = command_line(__doc__)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--cases", choices=sorted(CASES), action="append")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--patience", type=float, default=PATIENCE, help="seconds for one answer")
    options = parser.parse_args(argv)
    wanted = [
        (case_set, case)
        for case_set in options.cases or CASES
        for case in CASES[case_set]
        if case.key in measured(case_set, None)
    ]
    ask_all(wanted, Answers(options.answers), options.jobs, options.patience)
    return 0


class Answers:
    """The results of other estimators in bytes. They are stored in a file with one JSON object per line."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self._known = {
            (line["case_set"], line["key"], line["peer"]): line["bytes"] for line in map(json.loads, lines)
        }

    def has(self, case_set: str, key: str, peer: str) -> bool:
        return (case_set, key, peer) in self._known

    def get(self, case_set: str, key: str, peer: str) -> int | None:
        """Return the result, or None if the estimator failed or was not run."""
        return self._known.get((case_set, key, peer))

    def put(self, case_set: str, key: str, peer: str, answer: int | None) -> None:
        assert self._path is not None, "no file for answers was given"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps({"case_set": case_set, "key": key, "peer": peer, "bytes": answer}) + "\n")


def ask_all(
    cases: Iterable[tuple[str, Case]], answers: Answers, jobs: int, patience: float = PATIENCE
) -> None:
    """Run every estimator on every case that has no result yet."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    tasks = [
        Task(
            f"{case.key}, {peer}",
            partial(_ask, case_set, case, peer, answers),
            partial(_no_answer, case_set, case, peer, answers),
        )
        for case_set, case in cases
        for peer in PEERS
        if not answers.has(case_set, case.key, peer)
    ]
    run_parallel(tasks, jobs, patience)


def _ask(case_set: str, case: Case, peer: str, answers: Answers) -> None:
    answer: int | None
    try:
        answer = PEERS[peer](case)
    except ImportError:  # the estimator or a library of the case is not installed, so there is no result
        return
    except Exception:  # estimators fail in many ways, and a failure is a result
        answer = None
    answers.put(case_set, case.key, peer, answer)


def _no_answer(case_set: str, case: Case, peer: str, answers: Answers, reason: str) -> None:
    answers.put(case_set, case.key, peer, None)


def mem_tracker(case: Case) -> int:
    from torch.distributed._tools.mem_tracker import MemTracker

    torch.utils.swap_tensors = _swap_data  # `Module.to` swaps fake tensors, which fails
    with FakeTensorMode(allow_non_fake_inputs=True):
        model, optimizer, step = build(case, "cpu")
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        with tracker:
            step()
        peak = tracker.get_tracker_snapshot("peak")
    return max(int(sizes["Total"]) for sizes in peak.values())


def _swap_data(tensor: Any, other: Any) -> None:
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
    summary = torchinfo.summary(spec.model, input_data=[inputs], device="meta", verbose=0)
    return int(summary.total_input + summary.total_param_bytes + 2 * summary.total_output_bytes)


PEERS: dict[str, Callable[[Case], int]] = {
    "MemTracker": mem_tracker,
    "Accelerate": accelerate_estimate,
    "torchinfo": torchinfo_estimate,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
