"""A loop that resets its gradients after the forward pass keeps them alive during this pass."""

from pathlib import Path

import pytest

from legroom.memory.event_base import Frame
from legroom.observe.source.late_zero_grad import keeps_gradients_until_backward

LATE = "for x in loader:\n    loss = model(x).sum()\n    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n"
SCALED = LATE.replace("loss.backward", "scaler.scale(loss).backward")
FIRST = "for x in loader:\n    optimizer.zero_grad()\n    loss = model(x).sum()\n\n    loss.backward()\n    optimizer.step()\n"
LAST = "for x in loader:\n    loss = model(x).sum()\n    loss.backward()\n    optimizer.step()\n    optimizer.zero_grad()\n"
WEIGHTED = FIRST.replace("optimizer.zero", "w = schedule(1); optimizer.zero").replace(
    "loss.backward", "(w * loss).backward"
)
TWICE = LATE.replace("    loss =", "    optimizer.zero_grad(); loss =")


@pytest.mark.parametrize(
    ("text", "late"),
    [(LATE, True), (SCALED, True), (FIRST, False), (LAST, False), (WEIGHTED, False), (TWICE, False)],
)
def test_gradients_are_alive_if_zero_grad_follows_the_loss(tmp_path: Path, text: str, late: bool) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    line = next(number for number, each in enumerate(text.splitlines(), 1) if ".step()" in each)
    assert keeps_gradients_until_backward(Frame(str(script), line, "train")) is late


def test_a_step_outside_a_loop_is_not_judged(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("optimizer.step()\n")
    assert not keeps_gradients_until_backward(Frame(str(script), 1, "train"))
