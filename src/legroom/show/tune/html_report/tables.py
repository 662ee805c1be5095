"""The words and tables of the page."""

import re
from html import escape
from typing import Any

from legroom.show.common.formatting import format_count, format_duration
from legroom.tuning.report.figures import StudyFigures, TrialFigures
from legroom.units import format_size

SMALLEST_SHARE = 0.005
"""Of the variation: less would be written 0%."""


def lead(study: StudyFigures) -> str:
    """The first sentence: what came of it."""
    best = study.best
    ran = format_count(_ran(study), "trial")
    if best is None:
        return f"{ran}, and none reported {study.metric}: see below what was lost and why."
    return f"The best of {ran} reached {study.metric} {figure(best.value)}{_lost_words(study)}."


def _lost_words(study: StudyFigures) -> str:
    """Where there was a GPU to be full."""
    lost = study.count("lost")
    if not study.capacities:
        return ""
    return f"; {lost or 'none'} {'were' if lost > 1 else 'was'} lost to memory"


def _ran(study: StudyFigures) -> int:
    """Trials, without what was proposed and could never fit."""
    return len(study.trials) - study.count("rejected")


def facts(study: StudyFigures) -> str:
    told = [
        ("Trials", str(_ran(study))),
        ("Finished", str(study.count("good", "split"))),
        ("In micro-batches", str(sum(trial.splits for trial in study.trials))),
        ("Stopped early", str(study.count("stopped"))),
        ("Cannot fit", str(study.count("rejected"))),
        ("Failed", str(study.count("failed"))),
        ("Lost to memory", str(study.count("lost"))),
        ("Search", study.search),
        ("Scheduler", study.scheduler),
        ("Engine", study.engine),
        ("Time", format_duration(study.seconds)),
    ]
    return "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in told)


def best_section(study: StudyFigures) -> str:
    best = study.best
    if best is None:
        return ""
    values = ", ".join(f"{name} = {figure(value)}" for name, value in best.config.items())
    how = (
        f" It ran in micro-batches of {best.micro_batch}, with the gradients of its whole batch."
        if best.splits
        else ""
    )
    return (
        f"<section><h2>Best configuration</h2><p>Trial {best.number}: <code>{escape(values)}</code>."
        f"{escape(how)}</p></section>"
    )


def importance_bars(study: StudyFigures) -> str:
    if not study.importance:
        return "<p>Too few trials have a value to tell, or no parameter had two.</p>"
    if max(study.importance.values()) < SMALLEST_SHARE:
        count = format_count(sum(trial.value is not None for trial in study.trials), "trial")
        return f"<p>Of {escape(study.metric)}, by rank, no parameter alone explains more than chance would in {count}.</p>"
    rows = "".join(
        f'<span>{escape(name)}</span><i style="width:{share * 100:.1f}%"></i><span class="number">{share:.0%}</span>'
        for name, share in study.importance.items()
    )
    return (
        f"<p>The share of {escape(study.metric)}'s variation, by rank, that each parameter explains alone; what two do only together is in none.</p>"
        f'<div class="bars">{rows}</div>'
    )


def memory_words(study: StudyFigures) -> str:
    if not _with_memory(study):
        return "No trial's memory is known: the search ran without a GPU, real or virtual."
    sizes = " and ".join(format_size(capacity) for capacity in study.capacities)
    where = f", on {'GPUs' if len(study.capacities) > 1 else 'a GPU'} of {sizes}" if sizes else ""
    return f"What each trial was foretold to need at most, and what it took{where}."


def memory_legend(study: StudyFigures) -> str:
    """Of what the chart shows, and nothing else."""
    drawn = _with_memory(study)
    marks = [
        ("○ foretold", any(trial.predicted is not None for trial in drawn)),
        ("• seen", any(trial.peak is not None for trial in drawn)),
    ]
    kinds = [
        ("good", "finished"),
        ("split", "in micro-batches"),
        ("stopped", "stopped early"),
        ("rejected", "cannot fit: not started"),
        ("failed", "failed"),
        ("lost", "lost to memory"),
        ("open", "not over"),
    ]
    looks = {trial.look for trial in drawn}
    return "".join(
        [f"<span>{words}</span>" for words, is_drawn in marks if is_drawn]
        + [f'<span class="state {look}">{words}</span>' for look, words in kinds if look in looks]
    )


def _with_memory(study: StudyFigures) -> list[TrialFigures]:
    return [trial for trial in study.trials if trial.predicted is not None or trial.peak is not None]


def lost_table(study: StudyFigures) -> str:
    """Trials that gave no full result, by reason, with what each kind means."""
    kinds = [
        ("lost", "Lost to memory"),
        ("failed", "Failed by their own error"),
        ("rejected", "Cannot fit: not started"),
    ]
    rows = []
    for look, words in kinds:
        for trial_numbers, why in _by_reason([trial for trial in study.trials if trial.look == look]):
            rows.append(
                f"<tr><td class='state {look}'>{words}</td><td class=number>{len(trial_numbers)}</td>"
                f"<td class=why>{escape(why)}</td><td class=which>{', '.join(map(str, trial_numbers))}</td></tr>"
            )
    if not rows:
        return "<p>Nothing: every trial ran to its end or was stopped by the scheduler.</p>"
    return (
        '<div class="scroll"><table><thead><tr><th>What</th><th class=number>Trials</th><th>Why</th><th>Which</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def trials_table(study: StudyFigures) -> str:
    names = [parameter.name for parameter in study.parameters]
    heads = ["Trial", "State", study.metric, *names, "Reports", "Foretold", "Seen", "Time", "Why"]
    head = "".join(f"<th><button>{escape(name)}</button></th>" for name in heads)
    body = "".join(_row(trial, names) for trial in study.trials)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def figure(value: Any) -> str:
    """A value for people: four digits where it is a number, its class where it is an object of the user's."""
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
        f"<td class='state {trial.look}'>{escape(trial.state)}</td>",
        _cell(figure(trial.value), trial.value),
        *(_cell(figure(trial.config.get(name)), trial.config.get(name)) for name in names),
        _cell(str(len(trial.curve)), len(trial.curve)),
        _cell(format_size(trial.predicted) if trial.predicted is not None else "–", trial.predicted),
        _cell(format_size(trial.peak) if trial.peak is not None else "–", trial.peak),
        _cell(format_duration(trial.seconds) if trial.seconds is not None else "–", trial.seconds),
        f"<td class=why>{escape(trial.why)}</td>",
    ]
    return f'<tr data-trial="{trial.number}">{"".join(cells)}</tr>'


def _cell(text: str, value: Any) -> str:
    """Sorted by the figure itself, not by how it is written."""
    if value is None:
        return '<td data-sort="">–</td>'
    number = isinstance(value, int | float) and not isinstance(value, bool)
    order = f' data-sort="{value}"' if number else ""
    return f"<td{order}>{escape(text)}</td>"


def _by_reason(trials: list[TrialFigures]) -> list[tuple[list[int], str]]:
    """Trials with the same reason together, the most frequent first. Reasons that differ only in their figures are the
    same; the first trial's figures stand for all, as each one's own are in the table of all trials."""
    grouped: dict[str, list[TrialFigures]] = {}
    for trial in trials:
        grouped.setdefault(re.sub(r"[\d.,]+", "0", trial.why), []).append(trial)
    groups = sorted(grouped.values(), key=len, reverse=True)
    return [([trial.number for trial in group], group[0].why or "No reason was given.") for group in groups]
