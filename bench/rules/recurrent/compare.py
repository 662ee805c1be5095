"""Compares the rules for reserve and workspace of recurrent layers with the recordings of `survey`.

    python -m bench.rules.recurrent.compare FOLDER      FOLDER/recurrent-*.jsonl.gz

A prediction is right if it is within 0.5% of the measured size. The error is the mean and the 95th percentile of the
absolute error.
"""

import gzip
import json
import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

from bench.lib.command_line import command_line
from bench.lib.table import percentile, print_table
from bench.rules.recurrent.survey import Request
from legroom.observe.cuda_rules.recurrent.sizes import (
    RNN_MODES,
    RecurrentLayer,
    persistent,
    reserve,
    workspace,
)

MODES = {"LSTM": "lstm", "GRU": "gru", "RNN": "rnn_tanh"}
RIGHT = 0.005


def main(argv: list[str]) -> int:
    parser = command_line(__doc__)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(argv)
    errors: dict[tuple[str, str], list[float]] = defaultdict(list)
    for request, forward, backward in measured(options.folder):
        layer = described(request)
        used, reserved = workspace_and_reserve(forward, training=request.training)
        family = " ".join(
            [
                request.kind,
                "both" if request.both else "one way",
                "packed" if request.packed else "projected" if request.projected else "plain",
                "persistent" if persistent(layer) else "",
            ]
        )
        errors[family, "workspace"].append(workspace(layer) / used - 1)
        if request.training and reserved > 4096:
            errors[family, "reserve"].append(reserve(layer) / reserved - 1)
        if backward is not None:
            errors[family, "workspace, backward"].append(
                workspace(layer, backward=True) / repeated(backward) - 1
            )
    for what in ("reserve", "workspace", "workspace, backward"):
        errors["all", what] = [one for key, found in errors.items() if key[1] == what for one in found]
    rows = [
        [
            family,
            what,
            str(len(found)),
            f"{sum(abs(one) <= RIGHT for one in found) / len(found):.1%}",
            f"{mean(map(abs, found)):.2%}",
            f"{percentile(found, 0.95):.1%}",
            f"{min(found):.0%}",
        ]
        for (family, what), found in sorted(errors.items())
    ]
    print_table("recurrent layers", ["", "", "layers", "right", "error", "p95", "worst under"], rows)
    return 0


def measured(folder: Path) -> Iterator[tuple[Request, list[int], list[int] | None]]:
    for path in sorted(folder.glob("recurrent-*.jsonl.gz")):
        with gzip.open(path, "rt") as file:
            for row in map(json.loads, file):
                if row[-2] is not None:
                    yield Request(*row[:-2]), row[-2], row[-1]


def described(request: Request) -> RecurrentLayer:
    return RecurrentLayer(
        mode=RNN_MODES.index(MODES[request.kind]),
        steps=request.steps,
        batch=request.batch,
        inputs=request.inputs,
        hidden=request.hidden,
        layers=request.layers,
        directions=1 + request.both,
        dtype=request.dtype,
        training=request.training,
        dropout=request.dropout,
        projected=request.projected,
        rows=sum(lengths(request)) if request.packed else 0,
    )


def lengths(request: Request) -> list[int]:
    """Return the sequence lengths of a packed batch, as the survey drew them."""
    rng = random.Random(request.batch)
    return [request.steps, *(rng.randint(1, request.steps) for _ in range(request.batch - 1))]


def workspace_and_reserve(events: list[int], *, training: bool) -> tuple[int, int]:
    """Return the workspace and the reserve. Except for a few bytes of seeds, the workspace is freed first. The reserve
    is allocated after the workspace."""
    used = -next(size for size in events if size < -4096)
    before = events[events.index(-used) - 1]
    return used, before if training else 0


def repeated(events: list[int]) -> int:
    """Return the largest size that is allocated twice, because the backward pass allocates its workspace twice."""
    counts: dict[Any, int] = defaultdict(int)
    for size in events:
        counts[size] += 1
    return max(size for size, count in counts.items() if count > 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
