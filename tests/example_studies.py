"""Trials and studies for tests of reports and loggers."""

from legroom.tuning.report.figures import ParameterFigures, StudyFigures, TrialFigures, importance_of
from legroom.tuning.trial.records import Report, TrialMemory, TrialRecord, TrialState
from legroom.units import MiB


def finished(number: int = 0, **changes: object) -> TrialRecord:
    """Return a finished trial with three reports, each of which halves the loss."""
    values: dict[str, object] = {
        "config": {"lr": 0.01, "batch_size": 16},
        "state": TrialState.FINISHED,
        "reports": [Report(step, {"loss": 2.0 / 2**step, "accuracy": 0.3 * step}) for step in (1, 2, 3)],
        "memory": TrialMemory(predicted=60 * MiB, safe=64 * MiB, actual=55 * MiB, batch_size=16),
        "gpu": "virtual 0",
        "started": 1.0,
        "ended": 4.0 + number,
    }
    return TrialRecord(number=number, **{**values, **changes})  # type: ignore[arg-type]


def never_fits(number: int) -> TrialRecord:
    return TrialRecord(
        number=number,
        config={"lr": 0.02, "batch_size": 256},
        state=TrialState.NEVER_FITS,
        reason="Needs 512.0 MiB even in micro-batches of 1; 384.0 MiB is available",
        memory=TrialMemory(predicted=500 * MiB, safe=512 * MiB, batch_size=256),
    )


def failed(number: int, reason: str = "ValueError: no such loss, train.py:31") -> TrialRecord:
    return TrialRecord(
        number=number,
        config={"lr": 0.5, "batch_size": 2},
        state=TrialState.FAILED,
        reason=reason,
        started=1.0,
        ended=2.0,
    )


def study(*trials: TrialFigures, **changes: object) -> StudyFigures:
    parameters = [
        ParameterFigures(name="lr", kind="log"),
        ParameterFigures(name="batch_size", kind="category", values=(2, 16, 256)),
    ]
    values: dict[str, object] = {
        "title": "Study of train.py:train",
        "metric": "loss",
        "mode": "min",
        "search": "optuna",
        "scheduler": "asha",
        "engine": "ray",
        "seconds": 125.0,
        "parameters": parameters,
        "trials": trials,
        "capacities": [384 * MiB],
        "importance": importance_of(parameters, trials),
    }
    return StudyFigures(**{**values, **changes})  # type: ignore[arg-type]


def trial(number: int, **changes: object) -> TrialFigures:
    values: dict[str, object] = {
        "config": {"lr": 0.01 * (number + 1), "batch_size": 16},
        "outcome": "good",
        "state": "finished",
        "value": 0.5 + number,
        "curve": [(1, 2.0 + number), (2, 0.5 + number)],
        "predicted": 64 * MiB,
        "peak": 55 * MiB,
        "seconds": 3.0,
    }
    return TrialFigures(number=number, **{**values, **changes})  # type: ignore[arg-type]
