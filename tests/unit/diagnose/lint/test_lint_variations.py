"""The same few leaks, written in the many ways that people write them, and what only looks like them: a rule that knows one wording is none."""

import re
from pathlib import Path

import pytest

from legroom.diagnose.lint.engine import lint_text

FOLDER = Path(__file__).parents[3] / "data" / "lint_variations"
BEGINNING = """import asyncio, collections, copy, functools, heapq, queue, random
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
STEP = "    optimizer.zero_grad(); loss.backward(); optimizer.step()"


def snippets(name: str) -> dict[str, str]:
    parts = re.split(r"(?m)^### (.+)\n", (FOLDER / f"{name}.txt").read_text(encoding="utf-8"))[1:]
    return {
        title: BEGINNING + code.replace("    STEP", STEP)
        for title, code in zip(parts[::2], parts[1::2], strict=True)
    }


LEAKING, HEALTHY = snippets("leaking"), snippets("healthy")


@pytest.mark.parametrize("title", LEAKING)
def test_a_leak_is_named_at_its_line_and_nowhere_else(title: str) -> None:
    lines = LEAKING[title].splitlines()
    right = {number for number, line in enumerate(lines, 1) if line.endswith(("# leak", "# or"))}
    found = {
        finding.line for finding in lint_text(LEAKING[title], file="train.py") if finding.code[:3] in _JUDGED
    }
    assert found & right
    assert found <= right


@pytest.mark.parametrize("title", HEALTHY)
def test_what_only_looks_like_a_leak_has_no_finding(title: str) -> None:
    assert not [
        f"{finding.line} {finding.code}"
        for finding in lint_text(HEALTHY[title], file="train.py")
        if finding.code.startswith("LG1")
    ]


_JUDGED = ("LG1", "LG2")
