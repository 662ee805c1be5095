"""The forward passes before and after a line are counted along one path through the loop."""

from pathlib import Path

import pytest

from legroom.memory.event_base import Frame
from legroom.observe.source.forward_calls import ForwardCalls, forward_calls

BRANCHES = """\
model.train()
for x in loader:
    if use_amp:
        with autocast():
            if decodes:
                out = model(x, x)
            else:
                out = model(x)
    elif linear:
        out = model(x[0])
    else:
        out = model(x, mask)
    loss = out.sum()
    loss.backward()
"""
GAN = """\
generator.train(); critic.train()
for x in loader:
    fake = generator(z)
    try:
        loss = critic(x) - critic(fake)
    finally:
        log()
    loss.backward()
    critic(generator(z)).backward()
"""


@pytest.mark.parametrize(
    ("text", "line", "calls"),
    [
        (BRANCHES, 8, ForwardCalls(0, 1, 1)),
        (BRANCHES, 10, ForwardCalls(0, 1, 1)),
        (BRANCHES, 12, ForwardCalls(0, 1, 1)),
        (GAN, 3, ForwardCalls(0, 3, 3)),
        (GAN, 5, ForwardCalls(1, 3, 3)),
    ],
)
def test_calls_in_other_branches_do_not_count(
    tmp_path: Path, text: str, line: int, calls: ForwardCalls
) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    assert forward_calls(Frame(str(script), line, "train")) == calls
