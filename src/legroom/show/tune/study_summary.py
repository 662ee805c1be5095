"""The summary at the end of a search: the best trial, the number of trials in each state, failures, and the next command."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from legroom import shell
from legroom.show.common import notebook_html as html
from legroom.show.common.formatting import clean, format_count, format_duration
from legroom.show.common.sections import section
from legroom.show.common.terminal import render_to_string, verbatim
from legroom.show.tune.trial_table import format_config, trial_columns, trial_table
from legroom.tuning.report.figures import as_toml, pareto_front
from legroom.tuning.study import Study
from legroom.tuning.trial.records import TrialRecord, TrialState

MAX_ROWS = 12
MAX_FAILURES = 5
_ENDS = {
    TrialState.FINISHED: "finished",
    TrialState.STOPPED: "stopped early",
    TrialState.FAILED: "failed",
}


def summary(
    study: Study, command: Sequence[str] = (), written: Sequence[Path] = ()
) -> Iterator[RenderableType]:
    """Yield the parts of the summary. `command` is the command line, which the summary repeats with `--resume`.
    `written` contains the paths of the result files.
    """
    yield Text(_first_sentence(study))
    yield Text(_second_sentence(study))
    yield from _table(study)
    yield from _failures(study)
    yield from _pareto_front(study)
    yield from _best_configuration(study)
    if written:
        yield Text(
            f"\nResults are in {study.folder}: {', '.join(path.name for path in written)}, and a folder for each trial."
        )
    if study.interrupted and command:
        yield Text("Interrupted. To continue:")
        yield verbatim(f"  {shell.join([*command, '--resume'])}")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ShownStudy(Study):
    """A study whose `str()` is the summary of `legroom tune`."""

    def __str__(self) -> str:
        return render_to_string(Group(*summary(self))).rstrip()

    def _repr_html_(self) -> str:
        return html.block(*_html_parts(self))


def _html_parts(study: Study) -> Iterator[str]:
    yield html.sentence(_first_sentence(study), bold=True)
    yield html.sentence(_second_sentence(study))
    rows = _ranked_rows(study)
    if rows:
        few = len(rows) <= MAX_ROWS
        yield html.heading("Trials", "best first" if few else f"the best {MAX_ROWS} of {len(rows)}")
        columns = trial_columns(rows[:MAX_ROWS], study.space.parameter_names, study.metric, study.mode)
        cells = zip(*([html.text(cell) for cell in column] for column in columns.values()), strict=True)
        align = "".join("l" if name == "state" else "r" for name in columns)
        yield html.table(cells, align=align, head=[html.text(name) for name in columns])
    failed = [trial for trial in study.trials if trial.state.has_failed]
    for reason in list(dict.fromkeys(trial.reason for trial in failed))[:MAX_FAILURES]:
        numbers = ", ".join(str(trial.number) for trial in failed if trial.reason == reason)
        yield html.sentence(f"Failed: trial {numbers}. {reason}")
    if study.ranked:
        yield html.heading("Best configuration", "study.best_config")
        yield html.pre(as_toml(study.best_config))
    yield html.sentence(f"Results are in {study.folder}.", muted=True)


def _first_sentence(study: Study) -> str:
    if not study.ranked:
        was_reported = any(
            study.metric in report.metrics for trial in study.trials for report in trial.reports
        )
        what = f"a number for {study.metric}" if was_reported else study.metric
        return f"No trial {'had reported' if study.interrupted else 'reported'} {what}."
    best = study.best_trial
    where = f" Checkpoint: {best.checkpoint}." if best.checkpoint else ""
    config = format_config(best, study.space.parameter_names)
    return f"Best {study.metric} {study.best_value:.4g}, trial {best.number}: {config}.{where}"


def _second_sentence(study: Study) -> str:
    counts = study.state_counts()
    over = [trial for trial in study.trials if trial.state.is_final]
    ran = sum(trial.state is not TrialState.NEVER_FITS for trial in over)
    took = format_duration(study.seconds)
    parts = [f"{format_count(ran, 'trial')} in {took}" if ran else f"No trial finished in {took}"]
    parts += [f"{counts[state]} {words}" for state, words in _ENDS.items() if state in counts]
    split = sum(trial.memory.micro_batch is not None for trial in study.trials if trial.attempts)
    if split:
        parts.append(f"{split} in micro-batches")
    lost = counts.get(TrialState.OUT_OF_MEMORY, 0)
    if study.gpus and (lost or ran > 1):
        parts.append(f"{lost or 'none'} out of memory")
    sentence = f"{', '.join(parts)}{_unfinished(study)}."
    rejected = counts.get(TrialState.NEVER_FITS, 0)
    return sentence + (
        f" {format_count(rejected, 'configuration')} can never fit, and {'was' if rejected == 1 else 'were'} not started."
        if rejected
        else ""
    )


def _unfinished(study: Study) -> str:
    left = [trial.attempts > 0 for trial in study.trials if not trial.state.is_final]
    counts = {"interrupted": sum(left), "not started": len(left) - sum(left)}
    words = [f"{count} {what}" for what, count in counts.items() if count]
    return f"; {', '.join(words)}" if words else ""


def _table(study: Study) -> Iterator[RenderableType]:
    ranked = study.ranked
    rows = _ranked_rows(study)
    if not rows:
        return
    few = len(rows) <= MAX_ROWS
    yield from section("Trials", "best first" if few else f"the best {MAX_ROWS} of {len(rows)}")
    yield trial_table(
        rows[:MAX_ROWS],
        study.space.parameter_names,
        study.metric,
        study.mode,
        best=ranked[0] if ranked else None,
    )


def _ranked_rows(study: Study) -> list[TrialRecord]:
    ranked = study.ranked
    has_value = {trial.number for trial in ranked}
    others = [trial for trial in study.trials if trial.number not in has_value]
    return ranked + [trial for trial in others if trial.state.is_final and not trial.state.has_failed]


def _pareto_front(study: Study) -> Iterator[RenderableType]:
    front = pareto_front(study)
    if front:
        names = [metric for metric, _ in study.objectives]
        yield from section("Pareto front", f"of {' and '.join(names)}")
        for number, values in front.items():
            shown = ", ".join(f"{name} {value:.4g}" for name, value in zip(names, values, strict=True))
            config = format_config(study.trials[number], study.space.parameter_names)
            yield Padding(Text(clean(f"trial {number}: {shown} ({config})")), (0, 0, 0, 2))


def _best_configuration(study: Study) -> Iterator[RenderableType]:
    """Yield the best configuration at full precision, in a form that can be copied into a TOML file."""
    if study.ranked:
        yield from section("Best configuration", "TOML; in Python: study.best_config")
        yield verbatim(f"  # {clean(study.metric)} {study.best_value!r}")
        for line in as_toml(study.best_config).splitlines():
            yield verbatim(f"  {line}")


def _failures(study: Study) -> Iterator[RenderableType]:
    failed = [trial for trial in study.trials if trial.state.has_failed]
    if not failed:
        return
    yield from section("Failed trials")
    for reason in dict.fromkeys(trial.reason for trial in failed):
        same = [trial for trial in failed if trial.reason == reason]
        numbers = ", ".join(str(trial.number) for trial in same[:8]) + (" …" if len(same) > 8 else "")
        if len(same) == 1:
            which = f"trial {numbers} ({format_config(same[0], study.space.parameter_names)})"
        else:
            which = f"trials {numbers}"
        yield Padding(Text(f"{which}: {clean(reason)}"), (0, 0, 0, 2))
    yield Text(f"  The output of each trial is in {study.folder}/trials/NUMBER/output.txt.", style="dim")
