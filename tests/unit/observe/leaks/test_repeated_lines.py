"""Iterations of loops without a model, optimizer or loader are recognized by the lines that allocate memory."""

import os
import textwrap
from pathlib import Path

import pytest
import torch

from legroom.gpus.catalog import parse_gpus
from legroom.memory.detected_leak import DetectedLeak
from legroom.memory.event_base import Frame
from legroom.memory.events import Event
from legroom.observe.leaks.detector import LeakDetector
from legroom.observe.leaks.repeated_lines import READS_ON_ONE_LINE, RepeatedLines, ResultReads
from legroom.observe.session import Session
from legroom.observe.source import files


def _iterations(lines: list[int]) -> int:
    count = 0

    def ended() -> bool:
        nonlocal count
        count += 1
        return True

    watched = RepeatedLines(ended)
    for line in lines:
        watched.ran(Frame("train.py", line, "main"))
    return count


def test_several_allocations_on_a_line_are_one_iteration() -> None:
    assert _iterations([1, 2, 2, 2, 3] * 40) in (16, 17)


def test_line_of_the_outer_loop_ends_the_iterations() -> None:
    assert _iterations([*([7, 8] * 2), 9] * 40) in range(26, 30)


def test_loop_of_one_line_is_recognized() -> None:
    assert _iterations([5] * 200) > 100


def test_code_without_a_loop_has_no_iterations() -> None:
    assert _iterations(list(range(2000))) == 0


def test_watching_of_lines_ends_if_the_callback_returns_false() -> None:
    watched = RepeatedLines(lambda: False)
    for line in [1, 2] * 30:
        watched.ran(Frame("train.py", line, "main"))
    assert not watched.is_active


def test_reads_of_results_are_recorded_with_the_line_until_detached() -> None:
    lines: list[Frame | None] = []
    reads = ResultReads(lines.append)
    reads.attach()
    try:
        assert (torch.ones(2).sum().item(), torch.ones(2).tolist()) == (2, [1, 1])
    finally:
        reads.detach()
    torch.ones(2).sum().item()
    first = test_reads_of_results_are_recorded_with_the_line_until_detached.__code__.co_firstlineno
    assert [line.line - first for line in lines if line] == [5, 5]
    assert not set(ResultReads.METHODS) & set(vars(torch.Tensor))


def test_loop_that_reads_one_result_per_iteration_is_watched_without_a_recorder() -> None:
    found: list[DetectedLeak] = []
    detector = LeakDetector(found.append, on_device=lambda tensor: True, fraction=1e6)
    lines = RepeatedLines(detector.iterations.line_repeated, on_one_line=READS_ON_ONE_LINE)
    reads = ResultReads(lines.ran)
    sessions: dict[str, torch.Tensor] = {}
    detector.attach()
    reads.attach()
    try:
        for request in range(70):
            state = torch.randn(8)
            sessions[f"user {request}"] = state.tanh()
            state.sum().item()
    finally:
        reads.detach()
        detector.detach()
    assert {leak.name for leak in found} == {"sessions"}


def _leaks(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int | None]]:
    """Run a program on a virtual GPU and return the names and lines of its leaks."""
    script = folder / "program.py"
    script.write_text(textwrap.dedent(code))
    monkeypatch.setattr(files, "user_files", lambda: [os.fspath(script)])
    found: dict[tuple[object, ...], DetectedLeak] = {}

    def sink(event: Event) -> None:
        if isinstance(event, DetectedLeak):
            found[event.identity] = event

    with Session(sink, gpus=parse_gpus("1GiB")):
        exec(compile(script.read_text(), os.fspath(script), "exec"), {"__name__": "__main__"})
    return [(each.name, each.line) for each in found.values()]


SEARCH = """
import torch
def search(n):
    x = torch.zeros(64, device="cuda")
    tried = []
    for i in range(n):
        candidate = x + torch.randn(64, device="cuda")
        cost = candidate.abs().sum().item()
        {store}
    {end}
search(70)
"""


@pytest.mark.slow
def test_search_without_a_model_that_keeps_all_candidates_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = SEARCH.format(store="tried.append((cost, i, candidate))", end="return min(tried)[0]")
    assert _leaks(code, tmp_path, monkeypatch) == [("tried", 9)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("store", "end"),
    [
        ("tried.append(candidate)", "return torch.stack(tried).mean(0)"),
        ("tried = sorted([*tried, (cost, i, candidate)])[:5]", "return tried[0]"),
        ("tried.append(candidate.cpu().numpy())", "return None"),
    ],
)
def test_search_without_a_model_that_uses_or_limits_its_candidates_is_not_reported(
    store: str, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _leaks(SEARCH.format(store=store, end=end), tmp_path, monkeypatch) == []
