"""The closing words of a search: what is best, what became of the trials, what was lost and why, and what comes next."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from legroom.show.sections import section
from legroom.show.terminal import verbatim
from legroom.show.tune_table import config_words, trial_table
from legroom.show.words import counted, seconds_words
from legroom.tuning.records import TrialState
from legroom.tuning.study import Study

MOST_ROWS = 12
LOST = (TrialState.FAILED, TrialState.OUT_OF_MEMORY)


def summary(
    study: Study, command: Sequence[str] = (), written: Sequence[Path] = ()
) -> Iterator[RenderableType]:
    """For people. `command`: what was typed, to be gone on with; `written`: files that hold the rest."""
    yield Text(_first_sentence(study))
    yield Text(_second_sentence(study))
    if study.trials:
        yield from section("Trials", "the best first" if len(study.trials) > MOST_ROWS else "")
        yield trial_table(
            study.ranked + [t for t in study.trials if t not in study.ranked],
            study.metric,
            study.mode,
            most_rows=MOST_ROWS,
        )
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
        return f"No trial reported {study.metric}."
    best = study.best
    where = f" Its checkpoint: {best.checkpoint}." if best.checkpoint else ""
    return f"Best {study.metric} {study.best_value:.4g}, trial {best.number}: {config_words(best)}.{where}"


def _second_sentence(study: Study) -> str:
    counts = study.counted()
    ran = sum(count for state, count in counts.items() if state is not TrialState.NEVER_FITS)
    parts = [f"{counted(ran, 'trial')} in {seconds_words(study.seconds)}"]
    words = {
        TrialState.FINISHED: "{} finished",
        TrialState.STOPPED: "{} stopped early",
        TrialState.FAILED: "{} failed",
        TrialState.WAITING: "{} not done",
    }
    parts += [words[state].format(counts[state]) for state in words if state in counts]
    split = sum(
        trial.memory.micro_batch is not None and trial.state is not TrialState.NEVER_FITS
        for trial in study.trials
    )
    if split:
        parts.append(f"{split} with a split batch")
    lost = counts.get(TrialState.OUT_OF_MEMORY, 0)
    if study.places:
        parts.append(f"{lost} lost to memory" if lost else "none lost to memory")
    sentence = ", ".join(parts) + "."
    rejected = counts.get(TrialState.NEVER_FITS, 0)
    return sentence + (
        f" {counted(rejected, 'proposal')} can never fit and did not start." if rejected else ""
    )


def _losses(study: Study) -> Iterator[RenderableType]:
    lost = [trial for trial in study.trials if trial.state in LOST]
    if not lost:
        return
    yield from section("What was lost")
    for why in dict.fromkeys(trial.why for trial in lost):
        numbers = [str(trial.number) for trial in lost if trial.why == why]
        shown = ", ".join(numbers[:8]) + (" …" if len(numbers) > 8 else "")
        yield Text(f"  {'trial' if len(numbers) == 1 else 'trials'} {shown}: {why}")
    yield Text(f"  What each printed is in {study.folder}/trials/NUMBER/output.txt.", style="dim")
