"""Checks that end a study early if later trials would fail in the same way as the first trials."""

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from legroom.errors import UsageError, did_you_mean
from legroom.tuning.job import TuneJob
from legroom.tuning.trial.records import TrialRecord, TrialState

SAME_NAME = 0.85
"""If the similarity of two names is above this value, one of the names is treated as a misspelling. `los` and `loss`
are similar enough, but `loss_g` and `loss_d` are not.
"""
ALIKE_FAILURES = 3
"""The number of trials that fail for the same reason before the study ends. The study continues if any trial has
reported the metric.
"""
_NUMBER = re.compile(r"\d+")


def check_spelling(
    job: TuneJob, records: Sequence[TrialRecord], record: TrialRecord, metrics: Mapping[str, float]
) -> str:
    """Return a warning if a report lacks the metric of the study and no trial has reported it yet. Raises `UsageError`
    if a reported name is nearly the same as the metric, because one of the two is misspelled.
    """
    if not metrics or _has_metric(job, records):
        return ""
    names = ", ".join(f"`{name}`" for name in metrics)
    text = f"Trial {record.number} reported {names}, but not the metric `{job.metric}`."
    if difflib.get_close_matches(job.metric, metrics, n=1, cutoff=SAME_NAME):
        raise UsageError(text + did_you_mean(job.metric, metrics))
    return f"{text} Each trial must report this metric at least once."


def missing_metric_reason(job: TuneJob, record: TrialRecord) -> str:
    names = sorted({name for report in record.reports for name in report.metrics})
    missing = next((metric for metric, _ in job.objectives if metric not in names), None)
    if missing is None:
        return f"`{job.metric}` was never a number"
    reported = f"only {', '.join(names)}" if names else "nor any other metric"
    return f"Never reported `{missing}`, {reported}"


def raise_if_all_fail_alike(job: TuneJob, records: Sequence[TrialRecord], output: Path) -> None:
    failed = [record for record in records if record.state is TrialState.FAILED]
    is_alike = len({_NUMBER.sub("0", record.reason) for record in failed}) == 1
    if len(failed) >= ALIKE_FAILURES and is_alike and not _has_metric(job, records):
        raise UsageError(
            f"The first {len(failed)} trials failed in the same way: {failed[-1].reason}. Fix the function, then resume the "
            f"study. Output: {output}"
        )


def raise_if_never_reported(job: TuneJob, records: Sequence[TrialRecord], ended: TrialRecord) -> None:
    if not _has_metric(job, records):
        raise UsageError(
            f"Trial {ended.number} ended: {ended.reason}. Call `trial.report({job.metric}=...)`, or set another metric."
        )


def _has_metric(job: TuneJob, records: Sequence[TrialRecord]) -> bool:
    return any(job.metric in report.metrics for record in records for report in record.reports)
