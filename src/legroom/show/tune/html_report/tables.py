"""The texts and tables of the study page."""

import re
from html import escape
from typing import Any

from legroom.show.common.formatting import format_count, format_duration
from legroom.tuning.report.figures import StudyFigures, TrialFigures, as_toml, plain_config
from legroom.tuning.report.importance import MIN_TRIALS
from legroom.units import format_size

MIN_SHOWN_IMPORTANCE = 0.005
"""The minimum importance that is shown. A smaller value would be rounded to 0%."""


def lead(study: StudyFigures) -> str:
    best = study.best
    ran = format_count(_ran(study), "trial")
    if best is None:
        return f"{ran} ran, with no result for {study.metric}. The failures are listed below."
    if _ran(study) == 1:
        return f"The only trial reached {study.metric} {figure(best.value)}."
    return f"The best of {ran} reached {study.metric} {figure(best.value)}{_lost_text(study)}."


def _lost_text(study: StudyFigures) -> str:
    lost = study.count("lost")
    if not study.capacities:
        return ""
    return f"; {lost or 'none'} ran out of memory"


def _ran(study: StudyFigures) -> int:
    """Return the number of trials, excluding configurations that can never fit."""
    return len(study.trials) - study.count("rejected")


def facts(study: StudyFigures) -> str:
    entries = [
        ("Trials", str(_ran(study))),
        ("Finished", str(study.count("good", "split"))),
        ("In micro-batches", str(sum(trial.is_split for trial in study.trials))),
        ("Stopped early", str(study.count("stopped"))),
        ("Cannot fit", str(study.count("rejected"))),
        ("Failed", str(study.count("failed"))),
        ("Out of memory", str(study.count("lost"))),
        ("Search", study.search),
        ("Scheduler", study.scheduler),
        ("Engine", study.engine),
        ("Time", format_duration(study.seconds)),
    ]
    return "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in entries)


def best_section(study: StudyFigures) -> str:
    best = study.best
    if best is None:
        return ""
    forms = [("TOML", as_toml(best.config)), ("Python", repr(plain_config(best.config)))]
    blocks = "".join(
        f'<div class="copied"><button data-copy>Copy as {language}</button><pre>{escape(text)}</pre></div>'
        for language, text in forms
    )
    how = (
        f" The trial ran in micro-batches of {best.micro_batch}, with the same gradients as the full batch."
        if best.is_split
        else ""
    )
    if study.front:
        heads = "".join(f"<th class=number>{escape(metric)}</th>" for metric in study.metrics)
        rows = "".join(
            f"<tr data-trial={number}><td>{number}</td>{''.join(f'<td class=number>{figure(value)}</td>' for value in values)}"
            f"<td>{escape(', '.join(f'{name} {figure(value)}' for name, value in study.trials[number].config.items()))}</td></tr>"
            for number, values in study.front.items()
        )
        blocks += (
            "<h2>Pareto front</h2><p>No other trial is better in one metric without being worse in another.</p>"
            f'<div class="scroll"><table><thead><tr><th>Trial</th>{heads}<th>Configuration</th></tr></thead><tbody>{rows}</tbody></table></div>'
        )
    return (
        f"<section><h2>Best configuration</h2><p>Trial {best.number} reached {escape(study.metric)} {best.value!r}."
        f"{escape(how)}</p>{blocks}</section>"
    )


def importance_bars(study: StudyFigures) -> str:
    valued = [trial for trial in study.trials if trial.value is not None]
    if not study.importance and len(valued) < MIN_TRIALS:
        count = format_count(len(valued), "trial")
        return f"<p>Not available: {count} reported {escape(study.metric)}. At least {MIN_TRIALS} trials are needed.</p>"
    if not study.importance:
        return "<p>Not available: every parameter has the same value in all trials.</p>"
    early = sum(trial.outcome == "stopped" for trial in valued)
    cut_short = (
        f" Stopped early: {early} of {format_count(len(valued), 'trial')}. The value of a stopped trial is from fewer reports."
        if early
        else ""
    )
    if max(study.importance.values()) < MIN_SHOWN_IMPORTANCE:
        count = format_count(len(valued), "trial")
        return (
            f"<p>With {count}, no parameter on its own explains more of the variation in "
            f"{escape(study.metric)} than expected by chance.{cut_short}</p>"
        )
    rows = "".join(
        f'<span>{escape(name)}</span><i style="width:{share * 100:.1f}%"></i><span class="number">{share:.0%}</span>'
        for name, share in study.importance.items()
    )
    return (
        f"<p>The bars show the fraction of the variation in the rank of {escape(study.metric)} that each parameter explains on its own. Interactions between parameters are not included.{cut_short}</p>"
        f'<div class="bars">{rows}</div>'
    )


def memory_text(study: StudyFigures) -> str:
    if not _with_memory(study):
        return "There are no memory figures, because the search ran without a real or virtual GPU."
    sizes = " and ".join(format_size(capacity) for capacity in study.capacities)
    where = f", on {'GPUs' if len(study.capacities) > 1 else 'a GPU'} of {sizes}" if sizes else ""
    return f"The chart shows the predicted upper bound and the measured peak of each trial{where}."


def memory_legend(study: StudyFigures) -> str:
    drawn = _with_memory(study)
    marks = [
        ("○ predicted", any(trial.predicted is not None for trial in drawn)),
        ("• measured", any(trial.peak is not None for trial in drawn)),
    ]
    kinds = [
        ("good", "finished"),
        ("split", "in micro-batches"),
        ("stopped", "stopped early"),
        ("rejected", "cannot fit (not started)"),
        ("failed", "failed"),
        ("lost", "out of memory"),
        ("open", "not finished"),
    ]
    outcomes = {trial.outcome for trial in drawn}
    return "".join(
        [f"<span>{words}</span>" for words, is_drawn in marks if is_drawn]
        + [f'<span class="state {outcome}">{words}</span>' for outcome, words in kinds if outcome in outcomes]
    )


def _with_memory(study: StudyFigures) -> list[TrialFigures]:
    return [trial for trial in study.trials if trial.predicted is not None or trial.peak is not None]


def failure_table(study: StudyFigures) -> str:
    kinds = [
        ("lost", "Out of memory"),
        ("failed", "Failed with an error"),
        ("rejected", "Cannot fit (not started)"),
    ]
    rows = []
    for outcome, words in kinds:
        for trial_numbers, reason in _by_reason(
            [trial for trial in study.trials if trial.outcome == outcome]
        ):
            rows.append(
                f"<tr><td class='state {outcome}'>{words}</td><td class=number>{len(trial_numbers)}</td>"
                f"<td class=reason>{escape(reason)}</td><td class=which>{', '.join(map(str, trial_numbers))}</td></tr>"
            )
    if not rows:
        return "<p>No trial failed: every trial finished or was stopped by the scheduler.</p>"
    return (
        '<div class="scroll"><table><thead><tr><th>Outcome</th><th class=number>Count</th><th>Reason</th><th>Trials</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def trials_table(study: StudyFigures) -> str:
    names = [parameter.name for parameter in study.parameters]
    heads = ["Trial", "State", "Reason", study.metric, *names, "Reports", "Predicted", "Measured", "Time"]
    head = "".join(f"<th><button>{escape(name)}</button></th>" for name in heads)
    body = "".join(_row(trial, names) for trial in study.trials)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def figure(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, str | int | bool):
        return str(value)
    if isinstance(value, list | tuple):
        return ", ".join(figure(each) for each in value)
    return getattr(value, "__name__", type(value).__name__)


def _row(trial: TrialFigures, names: list[str]) -> str:
    cells = [
        _cell(str(trial.number), trial.number),
        f"<td class='state {trial.outcome}'>{escape(trial.state)}</td>",
        f"<td class=reason>{escape(trial.reason)}</td>",
        _cell(figure(trial.value), trial.value),
        *(_cell(figure(trial.config.get(name)), trial.config.get(name)) for name in names),
        _cell(str(len(trial.curve)), len(trial.curve)),
        _cell(format_size(trial.predicted) if trial.predicted is not None else "–", trial.predicted),
        _cell(format_size(trial.peak) if trial.peak is not None else "–", trial.peak),
        _cell(format_duration(trial.seconds) if trial.seconds is not None else "–", trial.seconds),
    ]
    return f'<tr data-trial="{trial.number}">{"".join(cells)}</tr>'


def _cell(text: str, value: Any) -> str:
    """Return a table cell. If `value` is a number, the table is sorted by `value`, not by the displayed text."""
    if value is None:
        return '<td data-sort="">–</td>'
    number = isinstance(value, int | float) and not isinstance(value, bool)
    order = f' data-sort="{value}"' if number else ""
    return f"<td{order}>{escape(text)}</td>"


def _by_reason(trials: list[TrialFigures]) -> list[tuple[list[int], str]]:
    """Group trials by reason, the most frequent reason first. Reasons that differ only in their numbers are treated as
    equal.
    """
    grouped: dict[str, list[TrialFigures]] = {}
    for trial in trials:
        grouped.setdefault(re.sub(r"[\d.,]+", "0", trial.reason), []).append(trial)
    groups = sorted(grouped.values(), key=len, reverse=True)
    return [([trial.number for trial in group], group[0].reason or "No reason given.") for group in groups]
