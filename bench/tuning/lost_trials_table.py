"""Prints the tables of `bench.tuning.lost_trials` with lost trials, best values and times.

Times are compared in two ways. The ratio per seed uses the plain system's own best value as the target, which that
system reaches by definition. The other comparison uses one target for all seeds, the median of the plain system's
best values. It divides all seconds that a system spent by the number of times that the system reached the target.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Any

from bench.lib.table import print_table

Row = dict[str, Any]
Others = dict[tuple[str, int], Row]
"""The plain system's studies, by search and seed."""
NAMES = ("search", "system")
SAME = 0.02
"""Losses with a smaller relative difference count as equal. The number of threads and micro-batches changes the last
digits, and training amplifies these changes."""
FOUND = ("seeds", "trials", "started", "lost to memory", "rejected", "split", "wasted s", "first report")
BESTS = (
    "all took",
    "then stalled",
    "their training alone",
    "best of all",
    "best within plain's time",
    "same proposals first",
)


def show(rows: Sequence[Row], plain: str = "ray") -> None:
    """Print both tables. `plain` is the system with which the other systems are compared."""
    print_table(
        "Studies; times in seconds, medians over seeds (min to max)",
        [*NAMES, *FOUND, *BESTS],
        [_found(mine, _others(rows, plain)) for mine in _groups(rows)],
    )
    print_table(
        f"Time to the value that {plain} found, against {plain}",
        [
            *NAMES,
            "target per seed, median",
            "each seed",
            "one target for all",
            "got there",
            f"{plain} got there",
        ],
        [_how_soon(mine, _others(rows, plain)) for mine in _groups(rows) if mine[0]["system"] != plain],
    )


def _groups(rows: Sequence[Row]) -> list[list[Row]]:
    """Yield the rows of each search and system."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["search"], row["system"]), []).append(row)
    searches = list(dict.fromkeys(row["search"] for row in rows))
    return sorted(groups.values(), key=lambda group: searches.index(group[0]["search"]))


def _others(rows: Sequence[Row], plain: str) -> Others:
    return {(row["search"], row["seed"]): row for row in rows if row["system"] == plain}


def _found(mine: Sequence[Row], others: Others) -> list[str]:
    trials = [trial for row in mine for trial in row["trials"]]
    lost = [trial for trial in trials if trial["lost"]]
    pairs = _pairs(mine, others)
    return [
        mine[0]["search"],
        mine[0]["system"],
        str(len(mine)),
        str(mine[0]["requested"]),
        str(len(trials)),
        f"{len(lost)} ({len(lost) / max(1, len(trials)):.0%})",
        str(sum(row["rejected"] for row in mine)),
        str(sum(trial["split"] for trial in trials)),
        _median([sum(t["seconds"] for t in row["trials"] if t["lost"]) for row in mine], "{:.1f}"),
        _median([reached(row, math.inf) for row in mine], "{:.1f}"),
        _median([row["seconds"] for row in mine], "{:.0f}"),
        _median([row["still"] for row in mine if "still" in row], "{:.0f}"),
        _median([training(row) for row in mine], "{:.0f}"),
        _median([best(row) for row in mine], "{:.4f}"),
        _median([best(row, within=plain["seconds"]) for row, plain in pairs], "{:.4f}"),
        _median([same_first(row, plain) for row, plain in pairs], "{:.0f}"),
    ]


def _how_soon(mine: Sequence[Row], others: Others) -> list[str]:
    pairs = _pairs(mine, others)
    if not pairs:
        return [mine[0]["search"], mine[0]["system"], "", "", "", "", ""]
    ratios = [reached(row, best(plain)) / reached(plain, best(plain)) for row, plain in pairs]
    target = statistics.median(best(plain) for _, plain in pairs)
    ours, theirs = [row for row, _ in pairs], [plain for _, plain in pairs]
    return [
        mine[0]["search"],
        mine[0]["system"],
        _median(ratios, "{:.2f}"),
        " ".join("never" if math.isinf(ratio) else f"{ratio:.2f}" for ratio in ratios),
        f"{_cost(ours, target) / _cost(theirs, target):.2f}",
        f"{_times(ours, target)} of {len(ours)}",
        f"{_times(theirs, target)} of {len(theirs)}",
    ]


def _pairs(mine: Sequence[Row], others: Others) -> list[tuple[Row, Row]]:
    """Yield each study with the plain study of the same search and seed, if the plain study has a result."""
    both = [(row, others[key]) for row in mine if (key := (row["search"], row["seed"])) in others]
    return [(row, plain) for row, plain in both if math.isfinite(best(plain))]


def best(row: Row, *, within: float = math.inf) -> float:
    """Return the lowest of all losses, or of the losses reported within a time."""
    reported = (pair for trial in row["trials"] for pair in trial["losses"])
    return min((loss for seconds, loss in reported if seconds <= within), default=math.inf)


def reached(row: Row, value: float) -> float:
    """Return the seconds until a loss was nearly as low as the target, or infinity if no loss was."""
    reported = (pair for trial in row["trials"] for pair in trial["losses"])
    return min((seconds for seconds, loss in reported if loss <= value * (1 + SAME)), default=math.inf)


def training(row: Row) -> float:
    """Return the seconds that trials trained, from report to report. Starts, imports and lost trials are not included."""
    reported = [[seconds for seconds, _ in trial["losses"]] for trial in row["trials"]]
    return sum((times[-1] - times[0]) * len(times) / (len(times) - 1) for times in reported if len(times) > 1)


def same_first(row: Row, plain: Row) -> int:
    """Return how many proposals are the same in both studies before the first difference."""
    pairs = zip(row["proposed"], plain["proposed"], strict=False)
    same = itertools.takewhile(lambda pair: all(_alike(pair[0][n], pair[1][n]) for n in pair[1]), pairs)
    return sum(1 for _ in same)


def _alike(mine: Any, other: Any) -> bool:
    return math.isclose(mine, other, rel_tol=1e-4) if isinstance(other, float) else bool(mine == other)


def _cost(rows: Sequence[Row], target: float) -> float:
    """Return the seconds spent for each time that the target was reached."""
    times = _times(rows, target)
    return sum(min(reached(row, target), row["seconds"]) for row in rows) / times if times else math.inf


def _times(rows: Sequence[Row], target: float) -> int:
    return sum(math.isfinite(reached(row, target)) for row in rows)


def _median(figures: Sequence[float], form: str) -> str:
    """Return the median and the range as text."""

    def text(figure: float) -> str:
        return form.format(figure) if math.isfinite(figure) else "never"

    if not figures:
        return ""
    return f"{text(statistics.median(figures))} ({text(min(figures))} to {text(max(figures))})"
