"""Threads of trials: shared by those that are at work, unless someone chose them."""

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from legroom.tuning.engines import cpu_share
from legroom.tuning.engines.cpu_share import ProcessorShare, Threads


@pytest.fixture(autouse=True)
def eight_processors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cpu_share, "processors", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
    cpu_share._allow_teams(True)


def shared(folder: Path, ranks: int = 1) -> ProcessorShare:
    return ProcessorShare(folder / "trials" / "threads", ranks)


def test_a_trial_has_more_threads_when_others_have_gone(tmp_path: Path) -> None:
    share = shared(tmp_path)
    threads = Threads(str(share.file))
    seen = []
    for trials in (1, 4, 2, 99):
        share.divide(trials, traces=False)
        threads.take()
        seen.append(torch.get_num_threads())
    assert seen == [8, 2, 4, 1]


def test_one_processor_is_left_while_something_is_traced(tmp_path: Path) -> None:
    share = shared(tmp_path)
    threads = Threads(str(share.file))
    seen = []
    for traces in (True, False):
        share.divide(1, traces=traces)
        threads.take()
        seen.append(torch.get_num_threads())
    assert seen == [7, 8]


def test_ranks_of_a_trial_share_too(tmp_path: Path) -> None:
    share = shared(tmp_path, ranks=2)
    share.divide(2, traces=False)
    Threads(str(share.file)).take()
    assert torch.get_num_threads() == 2


def test_a_number_that_the_function_chose_stays(tmp_path: Path) -> None:
    share = shared(tmp_path)
    threads = Threads(str(share.file))
    share.divide(2, traces=False)
    threads.take()
    torch.set_num_threads(3)
    share.divide(1, traces=False)
    threads.take()
    assert torch.get_num_threads() == 3


def test_a_number_in_the_environment_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    share = shared(tmp_path)
    share.divide(2, traces=False)
    Threads(str(share.file)).take()
    assert torch.get_num_threads() == before


def test_a_file_that_is_not_there_yet_changes_nothing(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    Threads(str(tmp_path / "none")).take()
    assert torch.get_num_threads() == before


def test_a_trial_follows_with_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.optim import optimizer as optimizers

    monkeypatch.setattr(optimizers, "_global_optimizer_post_hooks", OrderedDict())
    monkeypatch.setattr(cpu_share, "SECONDS_BETWEEN_LOOKS", 0.0)
    share = shared(tmp_path)
    share.divide(1, traces=False)
    threads = Threads(str(share.file))
    threads.take()
    threads.follow()
    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    seen = []
    for trials in (2, 4, 1):
        share.divide(trials, traces=False)
        seen.append(torch.get_num_threads())
        optimizer.step()
    assert seen == [8, 4, 2], "what was there when the step before was made"
    assert torch.get_num_threads() == 8


def teams() -> set[bool]:
    """Of each library of OpenMP: whether work is done by several threads."""
    libraries = cpu_share._openmp()
    if not libraries:
        pytest.skip("OpenMP is not found in this system")
    return {library.omp_get_max_active_levels() > 0 for library, _ in libraries}


def test_who_has_one_processor_has_one_thread_in_every_library(tmp_path: Path) -> None:
    share = shared(tmp_path)
    threads = Threads(str(share.file))
    seen = []
    for trials in (8, 1):
        share.divide(trials, traces=False)
        threads.take()
        seen.append(teams())
    assert seen == [{False}, {True}]


def test_threads_that_the_function_chose_are_there_in_every_library(tmp_path: Path) -> None:
    share = shared(tmp_path)
    threads = Threads(str(share.file))
    share.divide(8, traces=False)
    threads.take()
    torch.set_num_threads(3)
    threads.take()
    assert teams() == {True}


def test_a_system_without_openmp_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_share, "_openmp", list)
    share = shared(tmp_path)
    share.divide(8, traces=False)
    Threads(str(share.file)).take()
    assert torch.get_num_threads() == 1
