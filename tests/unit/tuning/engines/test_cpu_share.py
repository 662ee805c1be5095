"""CPU threads of trials: divided among running trials, unless the user sets them."""

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from legroom.tuning.engines import cpu_share
from legroom.tuning.engines.cpu_share import CpuShare, TrialThreads


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cpu_share, "processors", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
    cpu_share._allow_openmp_threads(True)


def share_of(folder: Path, ranks: int = 1) -> CpuShare:
    return CpuShare(folder / "trials" / "threads", ranks)


def test_a_trial_gets_more_threads_when_others_end(tmp_path: Path) -> None:
    share = share_of(tmp_path)
    threads = TrialThreads(str(share.file))
    seen = []
    for trials in (1, 4, 2, 99):
        share.divide(trials, is_tracing=False)
        threads.update()
        seen.append(torch.get_num_threads())
    assert seen == [8, 2, 4, 1]


def test_one_core_is_left_free_while_tracing(tmp_path: Path) -> None:
    share = share_of(tmp_path)
    threads = TrialThreads(str(share.file))
    seen = []
    for is_tracing in (True, False):
        share.divide(1, is_tracing=is_tracing)
        threads.update()
        seen.append(torch.get_num_threads())
    assert seen == [7, 8]


def test_ranks_share_the_cores(tmp_path: Path) -> None:
    share = share_of(tmp_path, ranks=2)
    share.divide(2, is_tracing=False)
    TrialThreads(str(share.file)).update()
    assert torch.get_num_threads() == 2


def test_a_thread_count_set_by_the_function_is_kept(tmp_path: Path) -> None:
    share = share_of(tmp_path)
    threads = TrialThreads(str(share.file))
    share.divide(2, is_tracing=False)
    threads.update()
    torch.set_num_threads(3)
    share.divide(1, is_tracing=False)
    threads.update()
    assert torch.get_num_threads() == 3


def test_a_thread_count_in_the_environment_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    share = share_of(tmp_path)
    share.divide(2, is_tracing=False)
    TrialThreads(str(share.file)).update()
    assert torch.get_num_threads() == before


def test_a_missing_file_changes_nothing(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    TrialThreads(str(tmp_path / "none")).update()
    assert torch.get_num_threads() == before


def test_a_trial_updates_its_threads_after_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.optim import optimizer as optimizers

    monkeypatch.setattr(optimizers, "_global_optimizer_post_hooks", OrderedDict())
    monkeypatch.setattr(cpu_share, "CHECK_SECONDS", 0.0)
    share = share_of(tmp_path)
    share.divide(1, is_tracing=False)
    threads = TrialThreads(str(share.file))
    threads.update()
    threads.update_after_steps()
    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    seen = []
    for trials in (2, 4, 1):
        share.divide(trials, is_tracing=False)
        seen.append(torch.get_num_threads())
        optimizer.step()
    assert seen == [8, 4, 2], "the number is read after each step"
    assert torch.get_num_threads() == 8


def uses_threads() -> set[bool]:
    """Return, as a set, whether each OpenMP library may use several threads."""
    libraries = cpu_share._openmp()
    if not libraries:
        pytest.skip("no OpenMP library found")
    return {library.omp_get_max_active_levels() > 0 for library, _ in libraries}


def test_with_one_core_every_openmp_library_uses_one_thread(tmp_path: Path) -> None:
    share = share_of(tmp_path)
    threads = TrialThreads(str(share.file))
    seen = []
    for trials in (8, 1):
        share.divide(trials, is_tracing=False)
        threads.update()
        seen.append(uses_threads())
    assert seen == [{False}, {True}]


def test_a_thread_count_set_by_the_function_applies_to_every_library(tmp_path: Path) -> None:
    share = share_of(tmp_path)
    threads = TrialThreads(str(share.file))
    share.divide(8, is_tracing=False)
    threads.update()
    torch.set_num_threads(3)
    threads.update()
    assert uses_threads() == {True}


def test_without_openmp_only_torch_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_share, "_openmp", list)
    share = share_of(tmp_path)
    share.divide(8, is_tracing=False)
    TrialThreads(str(share.file)).update()
    assert torch.get_num_threads() == 1
