"""Puts the page together: text and tables from here, charts from the page's own script, everything in one file.

The charts are plain SVG drawn by a few hundred lines beside this file, not a plotting library: the page weighs kilobytes
instead of megabytes, opens without a network, follows the reader's light or dark setting, and its charts answer to each other. What must
be readable without a script (the verdict, the tables) is plain HTML.
"""

import json
import math
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from legroom.errors import UsageError
from legroom.show.tune.html_report.tables import (
    best_section,
    facts,
    importance_bars,
    lead,
    lost_table,
    memory_legend,
    memory_words,
    trials_table,
)
from legroom.tuning.report.figures import StudyFigures, TrialFigures

_SCRIPTS = ("drawing.js", "choosing.js", "parallel.js", "curves.js", "memory.js")


def write_page(study: StudyFigures, path: Path) -> Path:
    """Write the page; a full disk or a folder that cannot be written is told in a sentence."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page(study), encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"the report could not be written to {path}: {error.strerror or error}. "
            "The study itself is kept: make room, and the same command with --resume writes the report"
        ) from None
    return path


def page(study: StudyFigures) -> str:
    """The whole page as text."""
    return Template(_part("page.html")).substitute(
        title=escape(study.title),
        metric=escape(study.metric),
        style=_part("page.css"),
        script="\n".join(_part(name) for name in _SCRIPTS),
        lead=escape(lead(study)),
        facts=facts(study),
        best=best_section(study),
        importance=importance_bars(study),
        memory_words=memory_words(study),
        memory_legend=memory_legend(study),
        lost=lost_table(study),
        trials=trials_table(study),
        data=_embedded(study),
    )


def _embedded(study: StudyFigures) -> str:
    """What the charts need, as JSON that cannot end its own script element."""
    told = {
        "metric": study.metric,
        "mode": study.mode,
        "capacities": list(study.capacities),
        "parameters": [
            {"name": each.name, "kind": each.kind, "values": [_plain(value) for value in each.values]}
            for each in study.parameters
        ],
        "trials": [_trial(trial) for trial in study.trials],
    }
    return json.dumps(told, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _trial(trial: TrialFigures) -> dict[str, Any]:
    return {
        "number": trial.number,
        "config": {name: _plain(value) for name, value in trial.config.items()},
        "look": trial.look,
        "state": trial.state,
        "why": trial.why,
        "value": trial.value,
        "curve": [[step, value] for step, value in trial.curve],
        "predicted": trial.predicted,
        "peak": trial.peak,
    }


def _plain(value: Any) -> Any:
    """As JSON can say it: a choice of the user's own class is told by its class alone, never by its `repr`."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple):
        return ", ".join(str(_plain(each)) for each in value)
    return getattr(value, "__name__", type(value).__name__)


def _part(name: str) -> str:
    return (files(__package__) / "page" / name).read_text(encoding="utf-8")
