"""Helpers for lint tests: a common prelude, test programs from tests/data, findings and fixes."""

import re
import textwrap
from pathlib import Path

from legroom.diagnose.lint.engine import fix_text, lint_text
from legroom.diagnose.lint.finding import LintFinding
from legroom.diagnose.lint.settings import Settings

PRELUDE = """\
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

model = nn.Linear(4, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train_loader = DataLoader(data, batch_size=4)
"""

STEP = """\
    loss = criterion(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
DATA = Path(__file__).parents[3] / "data"


def snippets(name: str, step: str = STEP) -> dict[str, str]:
    """Return the programs in a file of `tests/data`, by title. The line `STEP` is replaced by `step`."""
    parts = re.split(r"(?m)^### (.+)\n", (DATA / f"{name}.txt").read_text(encoding="utf-8"))[1:]
    return {
        title: code.replace("    STEP\n", step) for title, code in zip(parts[::2], parts[1::2], strict=True)
    }


def program(body: str) -> str:
    return PRELUDE + textwrap.dedent(body)


def findings(body: str, code: str) -> list[LintFinding]:
    return lint_text(program(body), settings=Settings(select=(code,)))


def reported_lines(body: str, code: str) -> list[str]:
    lines = program(body).splitlines()
    return [lines[(each.line or 1) - 1].partition("  #")[0].strip() for each in findings(body, code)]


def marked_lines(body: str) -> list[str]:
    """Return the lines that end with `# here`."""
    return [line.partition("  #")[0].strip() for line in body.splitlines() if line.endswith("# here")]


def fixed(body: str, code: str, *, unsafe: bool = False) -> str:
    """Return the body after all fixes of a rule, and check that it is valid Python."""
    text = fix_text(program(body), unsafe=unsafe, settings=Settings(select=(code,)))
    compile(text, "fixed", "exec")
    return text.removeprefix(PRELUDE)


def check_marks(body: str, code: str) -> None:
    """Check that a rule reports exactly the marked lines."""
    assert reported_lines(body, code) == marked_lines(body)
