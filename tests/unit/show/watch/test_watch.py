"""`legroom.watch`: iteration, the progress line, and leak warnings."""

import gc
import io
import re
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import legroom
from legroom.diagnose.report.growing_lines import Leak
from legroom.errors import UsageError
from legroom.show.watch.bar import ProgressStats, bar_text, plain_text, trend_text
from legroom.show.watch.watch import _shared
from legroom.units import GiB, MiB


def stats(**changes: Any) -> ProgressStats:
    defaults = {
        "description": "epoch 1", "done": 150, "total": 600, "seconds": 12.0, "allocated": GiB, "peak": 2 * GiB,
        "host": 3 * GiB, "bytes_per_step": 0,
    }  # fmt: skip
    return ProgressStats(**{**defaults, **changes})


def train(loader: Any, keep: list[Any]) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in loader:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        keep.append(loss)


def test_watch_yields_the_items_in_order() -> None:
    assert list(legroom.watch(range(5), quiet=True)) == [0, 1, 2, 3, 4]


def test_len_is_that_of_the_loader() -> None:
    assert len(legroom.watch([1, 2, 3])) == 3


@pytest.mark.slow
def test_a_leak_is_reported_once_with_variable_line_and_advice() -> None:
    out = io.StringIO()
    watched = legroom.watch([torch.randn(3, 4) for _ in range(30)], file=out)
    train(watched, [])
    assert out.getvalue().count("memory leak detected") == 1
    assert "keep (list, " in out.getvalue()
    assert "test_watch.py:" in out.getvalue()
    assert "loss.item()" in out.getvalue()
    (leak,) = watched.leaks
    assert (leak.kind, leak.code, leak.name) == ("graph", "LG101", "keep")


@pytest.mark.slow
def test_on_leak_is_called_instead_of_printing() -> None:
    out, leaks = io.StringIO(), list[Leak]()
    train(
        legroom.watch([torch.randn(3, 4) for _ in range(12)], file=out, on_leak=leaks.append, quiet=True), []
    )
    assert [leak.name for leak in leaks] == ["keep"]
    assert out.getvalue() == ""


def test_a_log_gets_one_plain_line_at_the_end() -> None:
    out = io.StringIO()
    list(legroom.watch(range(7), file=out, description="epoch 1"))
    (line,) = out.getvalue().splitlines()
    assert re.match(r"epoch 1, 7/7, 00:\d\d, ", line)
    assert "host " in line


def test_break_detaches_the_leak_detector() -> None:
    from legroom.show.watch.watch import _shared

    for item in legroom.watch(range(5), quiet=True):
        if item == 2:
            break
    gc.collect()
    assert _shared._listeners == []


def test_an_exception_of_the_loader_propagates() -> None:
    def broken() -> Any:
        yield 1
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        list(legroom.watch(broken(), quiet=True))


def test_watch_does_not_keep_a_batch_alive() -> None:
    def batches() -> Any:
        for _ in range(3):
            yield torch.ones(2)

    for batch in legroom.watch(batches(), quiet=True):
        reference = weakref.ref(batch)
        del batch
        assert reference() is None


def test_an_object_that_is_not_iterable_is_rejected() -> None:
    with pytest.raises(UsageError, match=r"watch\(\) requires an iterable such as a DataLoader, not int"):
        legroom.watch(3)  # type: ignore[arg-type]


def test_a_wide_terminal_shows_every_part() -> None:
    assert bar_text(stats(), 100) == (
        "epoch 1  150/600  ██░░░░░░░░  00:12<00:36  12.5 it/s  1.00 GiB allocated  peak 2.00 GiB  steady"
    )


def test_a_narrow_terminal_still_shows_memory_and_trend() -> None:
    text = bar_text(stats(bytes_per_step=MiB), 60)
    assert len(text) <= 60
    assert "1.00 GiB allocated" in text
    assert text.endswith("+1.0 MiB/step")


def test_without_a_total_no_bar_is_shown() -> None:
    assert plain_text(stats(total=None)).startswith("epoch 1, 150, 00:12, 12.5 it/s, ")


@pytest.mark.parametrize(
    ("rate", "text"), [(None, ""), (0, "steady"), (2048, "+2.0 KiB/step"), (-MiB, "-1.0 MiB/step")]
)
def test_trend_is_described(rate: int | None, text: str) -> None:
    assert trend_text(rate) == text


def test_only_the_first_epoch_of_a_loop_schedules_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    monkeypatch.setattr(_shared.detector, "begin_loop", lambda: begun.append(1))
    for _ in range(3):
        for _ in legroom.watch(enumerate([1, 2]), quiet=True):
            pass
        for _ in legroom.watch([3], quiet=True):  # a validation loop
            pass

    assert len(begun) == 2
