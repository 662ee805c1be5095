"""Scripts that expect to be started by torchrun, and the recommended batch size."""

from typing import Any, cast

import pytest

from legroom.gpus.catalog import find_gpu
from legroom.observe.script import Script
from legroom.predict import script_estimate
from legroom.predict.largest_batch import BatchSearch
from legroom.predict.script_estimate import _ScriptJob, needs_torchrun, single_rank_environment


@pytest.mark.parametrize(
    "error",
    [
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, but not set",
        "train.py:8, KeyError: 'LOCAL_RANK'. The script had used no GPU memory.",
    ],
)
def test_a_script_that_reads_the_variables_of_torchrun_needs_torchrun(error: str) -> None:
    assert needs_torchrun(error)


@pytest.mark.parametrize("error", ["train.py:8, KeyError: 'HOME'", "KeyError: 'rank'", "RANK"])
def test_other_errors_do_not_need_torchrun(error: str) -> None:
    assert not needs_torchrun(error)


def test_a_single_rank_has_all_variables_of_torchrun() -> None:
    variables = single_rank_environment("/somewhere")
    assert variables["RANK"] == variables["LOCAL_RANK"] == "0"
    assert variables["WORLD_SIZE"] == variables["LOCAL_WORLD_SIZE"] == "1"
    assert variables["MASTER_ADDR"]
    assert 0 < int(variables["MASTER_PORT"]) < 65536
    assert variables["LEGROOM_SINGLE_RANK"] == "/somewhere"


def test_the_recommended_batch_size_is_never_larger_than_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    class Current:
        batch_size, fits, trace = 128, False, None

    safe = BatchSearch(tried={91: True, 95: False})
    monkeypatch.setattr(script_estimate, "largest_batch", lambda *_arguments, **_options: safe)
    monkeypatch.setattr(script_estimate, "available_bytes", lambda trace: 0)
    job = _ScriptJob(cast(Script, None), find_gpu("1GiB"), None, 2, 1, False, *[cast(Any, None)] * 3)
    search = BatchSearch(tried={85: True, 96: False})
    assert job._recommended(search, cast(Any, None), cast(Any, Current), 0.0) == 91
    assert search.largest == 91


@pytest.mark.parametrize(
    ("verdict", "seconds", "reason"),
    [
        ("fits", 1.0, ""),
        ("fits", 20.0, "the script needs real values, and larger batches would take too long"),
        ("uncertain", 20.0, "the script needs real values, and other batch sizes would take too long"),
        ("does-not-fit", 20.0, ""),
        ("does-not-fit", 80.0, "the script needs real values, and one trace takes 80 seconds"),
    ],
)
def test_a_slow_script_that_does_not_fit_is_traced_with_smaller_batches(
    monkeypatch: pytest.MonkeyPatch, verdict: str, seconds: float, reason: str
) -> None:
    class PlainTrace:
        is_partial = False

    class Current:
        mode, fits, peak_reserved, trace = "cpu", verdict == "fits", 2 << 20, PlainTrace()

    Current.verdict = verdict  # type: ignore[attr-defined]
    monkeypatch.setattr(script_estimate, "available_bytes", lambda trace: 2 << 20)
    assert script_estimate._no_search_reason(cast(Any, Current), seconds) == reason
