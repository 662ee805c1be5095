"""Assembles the report of a study as a single HTML file.

A script of the page draws the charts as SVG, without a plotting library. Therefore, the page is small and needs no
network. The results and tables are plain HTML and can be read without scripts.
"""

import math
from html import escape
from pathlib import Path
from typing import Any

from legroom.errors import UsageError
from legroom.show.common.html_page import fill_template
from legroom.show.tune.html_report.tables import (
    best_section,
    facts,
    failure_table,
    importance_bars,
    lead,
    memory_legend,
    memory_text,
    trials_table,
)
from legroom.tuning.report.figures import StudyFigures, TrialFigures

_SCRIPTS = ("drawing.js", "choosing.js", "parallel.js", "curves.js", "memory.js")


def write_page(study: StudyFigures, path: Path) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page(study), encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"The report could not be written to {path}: {error.strerror or error}. "
            "The results are saved. Free some space, then repeat the command with --resume to write the report."
        ) from None
    return path


def page(study: StudyFigures) -> str:
    return fill_template(
        __package__,
        style="page.css",
        scripts=_SCRIPTS,
        name="study",
        data=_data(study),
        title=escape(study.title),
        metric=escape(study.metric),
        lead=escape(lead(study)),
        facts=facts(study),
        best=best_section(study),
        importance=importance_bars(study),
        memory_text=memory_text(study),
        memory_legend=memory_legend(study),
        failures=failure_table(study),
        trials=trials_table(study),
    )


def _data(study: StudyFigures) -> dict[str, Any]:
    return {
        "metric": study.metric,
        "mode": study.mode,
        "capacities": list(study.capacities),
        "parameters": [
            {"name": each.name, "kind": each.kind, "values": [_plain(value) for value in each.values]}
            for each in study.parameters
        ],
        "trials": [_trial(trial) for trial in study.trials],
    }


def _trial(trial: TrialFigures) -> dict[str, Any]:
    return {
        "number": trial.number,
        "config": {name: _plain(value) for name, value in trial.config.items()},
        "outcome": trial.outcome,
        "state": trial.state,
        "reason": trial.reason,
        "value": trial.value,
        "curve": [[step, value] for step, value in trial.curve],
        "predicted": trial.predicted,
        "peak": trial.peak,
    }


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple):
        return ", ".join(str(_plain(each)) for each in value)
    return getattr(value, "__name__", type(value).__name__)
