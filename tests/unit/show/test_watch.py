"""`legroom.watch`: hands items on, says how far and how much, and raises the alarm once."""

import gc
import io
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import legroom
from legroom.diagnose.report.growing_lines import Leak
from legroom.errors import UsageError
from legroom.show.watch.bar import Figures, bar_text, plain_text, trend_words
from legroom.units import GiB, MiB


def figures(**changes: Any) -> Figures:
    given = {
        "description": "epoch 1", "done": 150, "total": 600, "seconds": 12.0, "allocated": GiB, "peak": 2 * GiB,
        "host": 3 * GiB, "bytes_per_step": 0,
    }  # fmt: skip
    return Figures(**{**given, **changes})


def train(loader: Any, keep: list[Any]) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in loader:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        keep.append(loss)


def test_items_come_through_in_order() -> None:
    assert list(legroom.watch(range(5), quiet=True)) == [0, 1, 2, 3, 4]


def test_its_length_is_the_loaders() -> None:
    assert len(legroom.watch([1, 2, 3])) == 3


def test_a_leak_is_told_once_with_holder_line_and_advice() -> None:
    out = io.StringIO()
    watched = legroom.watch([torch.randn(3, 4) for _ in range(30)], file=out)
    train(watched, [])
    assert out.getvalue().count("memory grows with every step") == 1
    assert "keep (list, " in out.getvalue()
    assert "test_watch.py:" in out.getvalue()
    assert "loss.item()" in out.getvalue()
    (leak,) = watched.leaks
    assert (leak.kind, leak.code, leak.name) == ("graph", "LG101", "keep")


def test_on_leak_takes_the_alarm() -> None:
    out, told = io.StringIO(), list[Leak]()
    train(
        legroom.watch([torch.randn(3, 4) for _ in range(12)], file=out, on_leak=told.append, quiet=True), []
    )
    assert [leak.name for leak in told] == ["keep"]
    assert out.getvalue() == ""


def test_a_log_gets_plain_lines_and_a_last_one() -> None:
    out = io.StringIO()
    list(legroom.watch(range(7), file=out, description="epoch 1"))
    (line,) = out.getvalue().splitlines()
    assert line.startswith("epoch 1, 7/7, 00:00, ")
    assert "host " in line


def test_a_loop_left_early_ends_the_watch() -> None:
    from legroom.show.watch.watch import _detector

    for item in legroom.watch(range(5), quiet=True):
        if item == 2:
            break
    gc.collect()
    assert _detector._listeners == []


def test_an_error_in_the_loader_is_the_loaders() -> None:
    def broken() -> Any:
        yield 1
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        list(legroom.watch(broken(), quiet=True))


def test_a_batch_dies_when_the_user_drops_it() -> None:
    def batches() -> Any:
        for _ in range(3):
            yield torch.ones(2)

    for batch in legroom.watch(batches(), quiet=True):
        reference = weakref.ref(batch)
        del batch
        assert reference() is None


def test_what_cannot_be_looped_over_is_refused_with_a_sentence() -> None:
    with pytest.raises(UsageError, match="something to loop over, such as a DataLoader, and got a int"):
        legroom.watch(3)  # type: ignore[arg-type]


def test_the_line_of_a_wide_terminal() -> None:
    assert bar_text(figures(), 100) == (
        "epoch 1  150/600  ██░░░░░░░░  00:12<00:36  12.5/s  1.00 GiB allocated  peak 2.00 GiB  steady"
    )


def test_a_narrow_terminal_keeps_memory_and_trend() -> None:
    text = bar_text(figures(bytes_per_step=MiB), 60)
    assert len(text) <= 60
    assert "1.00 GiB allocated" in text
    assert text.endswith("+1.0 MiB/step")


def test_without_a_total_there_is_no_bar() -> None:
    assert plain_text(figures(total=None)).startswith("epoch 1, 150, 00:12, 12.5/s, ")


@pytest.mark.parametrize(
    ("rate", "words"), [(None, ""), (0, "steady"), (2048, "+2.0 KiB/step"), (-MiB, "-1.0 MiB/step")]
)
def test_trends(rate: int | None, words: str) -> None:
    assert trend_words(rate) == words
