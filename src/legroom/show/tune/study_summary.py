"""The closing words of a search: what is best, what became of the trials, what was lost and why, and what comes next."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from legroom.show.common.formatting import clean, format_count, format_duration
from legroom.show.common.sections import section
from legroom.show.common.terminal import verbatim
from legroom.show.tune.trial_table import config_words, trial_table
from legroom.tuning.study import Study
from legroom.tuning.trial.records import TrialState

MOST_ROWS = 12
LOST = (TrialState.FAILED, TrialState.OUT_OF_MEMORY)
_ENDS = {
    TrialState.FINISHED: "finished",
    TrialState.STOPPED: "stopped early",
    TrialState.FAILED: "failed",
}


def summary(
    study: Study, command: Sequence[str] = (), written: Sequence[Path] = ()
) -> Iterator[RenderableType]:
    """For people. `command`: what was typed, to be gone on with; `written`: files that hold the rest."""
    yield Text(_first_sentence(study))
    yield Text(_second_sentence(study))
    yield from _table(study)
    yield from _losses(study)
    if written:
        yield Text(
            f"\nKept in {study.folder}: {', '.join(path.name for path in written)}, and a folder for each trial."
        )
    if study.interrupted and command:
        yield Text("Interrupted. To go on:")
        yield verbatim(f"  {shlex.join([*command, '--resume'])}")


def _first_sentence(study: Study) -> str:
    if not study.ranked:
        is_told = any(study.metric in report.metrics for trial in study.trials for report in trial.reports)
        what = f"a number for {study.metric}" if is_told else study.metric
        return f"No trial {'had reported' if study.interrupted else 'reported'} {what}."
    best = study.best
    where = f" Its checkpoint: {best.checkpoint}." if best.checkpoint else ""
    words = config_words(best, study.space.searched)
    return f"Best {study.metric} {study.best_value:.4g}, trial {best.number}: {words}.{where}"


def _second_sentence(study: Study) -> str:
    counts = study.counted()
    over = [trial for trial in study.trials if trial.state.is_final]
    ran = sum(trial.state is not TrialState.NEVER_FITS for trial in over)
    took = format_duration(study.seconds)
    parts = [f"{format_count(ran, 'trial')} in {took}" if ran else f"No trial was over after {took}"]
    parts += [f"{counts[state]} {words}" for state, words in _ENDS.items() if state in counts]
    split = sum(trial.memory.micro_batch is not None for trial in study.trials if trial.attempts)
    if split:
        parts.append(f"{split} with a split batch")
    lost = counts.get(TrialState.OUT_OF_MEMORY, 0)
    if study.places:
        parts.append(f"{lost} lost to memory" if lost else "none lost to memory")
    sentence = f"{', '.join(parts)}{_left_words(study)}."
    rejected = counts.get(TrialState.NEVER_FITS, 0)
    return sentence + (
        f" {format_count(rejected, 'proposal')} can never fit and did not start." if rejected else ""
    )


def _left_words(study: Study) -> str:
    """`; 1 broken off, 2 not begun`, where a study ended before its trials did."""
    left = [trial.attempts > 0 for trial in study.trials if not trial.state.is_final]
    counts = {"broken off": sum(left), "not begun": len(left) - sum(left)}
    words = [f"{count} {what}" for what, count in counts.items() if count]
    return f"; {', '.join(words)}" if words else ""


def _table(study: Study) -> Iterator[RenderableType]:
    ranked = study.ranked
    has_value = {trial.number for trial in ranked}
    others = [trial for trial in study.trials if trial.number not in has_value]
    rows = ranked + [trial for trial in others if trial.state.is_final and trial.state not in LOST]
    if not rows:
        return
    few = len(rows) <= MOST_ROWS
    yield from section("Trials", "the best first" if few else f"the best {MOST_ROWS} of {len(rows)}")
    yield trial_table(
        rows[:MOST_ROWS], study.space.searched, study.metric, study.mode, best=ranked[0] if ranked else None
    )


def _losses(study: Study) -> Iterator[RenderableType]:
    lost = [trial for trial in study.trials if trial.state in LOST]
    if not lost:
        return
    yield from section("What was lost")
    for why in dict.fromkeys(trial.why for trial in lost):
        same = [trial for trial in lost if trial.why == why]
        numbers = ", ".join(str(trial.number) for trial in same[:8]) + (" …" if len(same) > 8 else "")
        if len(same) == 1:
            which = f"trial {numbers} ({config_words(same[0], study.space.searched)})"
        else:
            which = f"trials {numbers}"
        yield Padding(Text(f"{which}: {clean(why)}"), (0, 0, 0, 2))
    yield Text(f"  What each printed is in {study.folder}/trials/NUMBER/output.txt.", style="dim")
