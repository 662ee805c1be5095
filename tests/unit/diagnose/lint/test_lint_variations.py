"""Variations of the same leaks, and similar programs without a leak. A rule must not depend on the coding style."""

import pytest
from lint_cases import snippets

from legroom.diagnose.lint.engine import lint_text

pytestmark = pytest.mark.slow

PRELUDE = """import asyncio, collections, copy, functools, heapq, queue, random
import numpy as np
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
import torchvision
from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from torch import nn
from tqdm import tqdm
from typing import NamedTuple
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
optimizer = torch.optim.Adam(model.parameters())
def batches(n=20):
    for _ in range(n):
        yield torch.randn(8, 4, device=device), torch.randint(0, 2, (8,), device=device)
"""
STEP = "    optimizer.zero_grad(); loss.backward(); optimizer.step()\n"
LEAKING, HEALTHY = (snippets(f"lint_variations/{name}", STEP) for name in ("leaking", "healthy"))
LEAKING_PROGRAMS, HEALTHY_PROGRAMS = (
    snippets(f"lint_variations/{name}_programs") for name in ("leaking", "healthy")
)


@pytest.mark.parametrize("title", LEAKING)
def test_leak_is_reported_at_its_line_only(title: str) -> None:
    _check_lines(PRELUDE + LEAKING[title])


@pytest.mark.parametrize("title", LEAKING_PROGRAMS)
def test_leak_of_a_whole_program_is_reported_at_its_line_only(title: str) -> None:
    _check_lines(LEAKING_PROGRAMS[title])


def _check_lines(text: str) -> None:
    lines = text.splitlines()
    right = {number for number, line in enumerate(lines, 1) if line.endswith(("# leak", "# or"))}
    found = {finding.line for finding in lint_text(text, file="train.py") if finding.code[:3] in _LEAK_CODES}
    assert found & right
    assert found <= right


@pytest.mark.parametrize("title", HEALTHY)
def test_program_without_a_leak_has_no_finding(title: str) -> None:
    assert not [
        f"{finding.line} {finding.code}"
        for finding in lint_text(PRELUDE + HEALTHY[title], file="train.py")
        if finding.code.startswith("LG1")
    ]


@pytest.mark.parametrize("title", HEALTHY_PROGRAMS)
def test_whole_program_without_a_leak_has_no_finding(title: str) -> None:
    found = lint_text(HEALTHY_PROGRAMS[title], file="train.py")
    assert not [f"{finding.line} {finding.code}" for finding in found if finding.code[:3] in _LEAK_CODES]


_LEAK_CODES = ("LG1", "LG2")
