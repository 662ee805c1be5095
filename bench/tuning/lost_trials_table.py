"""The tables of `bench.tuning.lost_trials`, from its rows: what was lost, what was found, and how soon.

Two ways to say how soon. The ratio of each seed takes the plain system's own best value as the aim, which that one reaches by definition. The other takes one
aim for all seeds, the median of the plain system's best values, and divides all seconds that a system spent by how often it
got there: so a study that did not get there costs its whole time.
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
"""Losses that differ by no more are taken for the same. Sums of micro-batches, and of another number of threads, differ in their last digits, and training magnifies that."""
FOUND = ("seeds", "trials", "started", "lost to memory", "rejected", "split", "wasted s", "first report")
BESTS = (
    "all took",
    "then stood still",
    "their training alone",
    "best of all",
    "best in the plain one's time",
    "same proposals first",
)


def show(rows: Sequence[Row], plain: str = "ray") -> None:
    """Print both tables. `plain`: the system that the others are compared with."""
    print_table(
        "Studies; times in seconds, medians over seeds (least to most)",
        [*NAMES, *FOUND, *BESTS],
        [_found(mine, _others(rows, plain)) for mine in _groups(rows)],
    )
    print_table(
        f"Time to the value that {plain} found, against {plain}",
        [
            *NAMES,
            "each seed's own aim, median",
            "each seed",
            "one aim for all",
            "got there",
            f"{plain} got there",
        ],
        [_how_soon(mine, _others(rows, plain)) for mine in _groups(rows) if mine[0]["system"] != plain],
    )


def _groups(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows of one search and system, search by search."""
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
        str(mine[0]["asked"]),
        str(len(trials)),
        f"{len(lost)} ({len(lost) / max(1, len(trials)):.0%})",
        str(sum(row["rejected"] for row in mine)),
        str(sum(trial["split"] for trial in trials)),
        _middle([sum(t["seconds"] for t in row["trials"] if t["lost"]) for row in mine], "{:.1f}"),
        _middle([reached(row, math.inf) for row in mine], "{:.1f}"),
        _middle([row["seconds"] for row in mine], "{:.0f}"),
        _middle([row["still"] for row in mine if "still" in row], "{:.0f}"),
        _middle([training(row) for row in mine], "{:.0f}"),
        _middle([best(row) for row in mine], "{:.4f}"),
        _middle([best(row, within=plain["seconds"]) for row, plain in pairs], "{:.4f}"),
        _middle([same_first(row, plain) for row, plain in pairs], "{:.0f}"),
    ]


def _how_soon(mine: Sequence[Row], others: Others) -> list[str]:
    pairs = _pairs(mine, others)
    if not pairs:
        return [mine[0]["search"], mine[0]["system"], "", "", "", "", ""]
    ratios = [reached(row, best(plain)) / reached(plain, best(plain)) for row, plain in pairs]
    aim = statistics.median(best(plain) for _, plain in pairs)
    ours, theirs = [row for row, _ in pairs], [plain for _, plain in pairs]
    return [
        mine[0]["search"],
        mine[0]["system"],
        _middle(ratios, "{:.2f}"),
        " ".join("never" if math.isinf(ratio) else f"{ratio:.2f}" for ratio in ratios),
        f"{_price(ours, aim) / _price(theirs, aim):.2f}",
        f"{_times(ours, aim)} of {len(ours)}",
        f"{_times(theirs, aim)} of {len(theirs)}",
    ]


def _pairs(mine: Sequence[Row], others: Others) -> list[tuple[Row, Row]]:
    """Each study with the plain one of the same search and seed, where that found anything."""
    both = [(row, others[key]) for row in mine if (key := (row["search"], row["seed"])) in others]
    return [(row, plain) for row, plain in both if math.isfinite(best(plain))]


def best(row: Row, *, within: float = math.inf) -> float:
    """The lowest loss: of all, or of what was reported in time."""
    told = (pair for trial in row["trials"] for pair in trial["losses"])
    return min((loss for seconds, loss in told if seconds <= within), default=math.inf)


def reached(row: Row, value: float) -> float:
    """Seconds until a loss was as low, or nearly; never: infinity."""
    told = (pair for trial in row["trials"] for pair in trial["losses"])
    return min((seconds for seconds, loss in told if loss <= value * (1 + SAME)), default=math.inf)


def training(row: Row) -> float:
    """Seconds that trials trained, one after the other: from report to report, so without starts, imports and what was lost."""
    told = [[seconds for seconds, _ in trial["losses"]] for trial in row["trials"]]
    return sum((times[-1] - times[0]) * len(times) / (len(times) - 1) for times in told if len(times) > 1)


def same_first(row: Row, plain: Row) -> int:
    """How many proposals are the same in both, from the first one on."""
    pairs = zip(row["proposed"], plain["proposed"], strict=False)
    same = itertools.takewhile(lambda pair: all(_alike(pair[0][n], pair[1][n]) for n in pair[1]), pairs)
    return sum(1 for _ in same)


def _alike(mine: Any, other: Any) -> bool:
    return math.isclose(mine, other, rel_tol=1e-4) if isinstance(other, float) else bool(mine == other)


def _price(rows: Sequence[Row], aim: float) -> float:
    """Seconds that were spent for each time that the aim was reached."""
    times = _times(rows, aim)
    return sum(min(reached(row, aim), row["seconds"]) for row in rows) / times if times else math.inf


def _times(rows: Sequence[Row], aim: float) -> int:
    return sum(math.isfinite(reached(row, aim)) for row in rows)


def _middle(figures: Sequence[float], form: str) -> str:
    """The median, and from where to where."""

    def text(figure: float) -> str:
        return form.format(figure) if math.isfinite(figure) else "never"

    if not figures:
        return ""
    return f"{text(statistics.median(figures))} ({text(min(figures))} to {text(max(figures))})"
