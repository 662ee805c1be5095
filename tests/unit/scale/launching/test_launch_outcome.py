"""Which of many ranks that fell together is to blame."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from legroom.scale.launching.folder import RankEnding, RunFolder, make_folder, read_ending
from legroom.scale.launching.hints import hint
from legroom.scale.launching.outcome import Attempt, LaunchEnd, RankResult, crowded

LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:2978"


def raised(rank: int, error: str, *, time: float = 0.0, traceback: str = "", code: int = 1) -> RankResult:
    ending = RankEnding(
        rank=rank, time=time, exit_code=code, ended="raised", error=error, traceback=traceback
    )
    return RankResult(rank=rank, exit_code=code, ending=ending, files=RunFolder(Path("x")).files(rank))


def died(rank: int, number: int) -> RankResult:
    return RankResult(rank=rank, exit_code=-number, ending=None, files=RunFolder(Path("x")).files(rank))


def finished(rank: int, device: int | None = None) -> RankResult:
    ending = RankEnding(
        rank=rank, time=9.0, exit_code=0, ended="finished", device=device, peak_allocated=1, capacity=2
    )
    return RankResult(rank=rank, exit_code=0, ending=ending, files=RunFolder(Path("x")).files(rank))


def attempt(*ranks: RankResult) -> Attempt:
    return Attempt(number=0, seconds=1.0, ranks=ranks)


def test_the_earliest_error_is_the_cause():
    cause = attempt(raised(0, "ValueError: b", time=2.0), raised(1, "ValueError: a", time=1.0)).cause
    assert cause is not None
    assert cause.rank == 1


def test_an_error_comes_before_a_connection_that_was_lost_earlier():
    fallen = attempt(raised(0, LOST, time=1.0), raised(1, "ValueError: a", time=2.0))
    assert fallen.cause is fallen.ranks[1]
    assert fallen.followers == (fallen.ranks[0],)


def test_a_killed_rank_comes_before_connections_lost_to_it():
    fallen = attempt(raised(0, LOST), died(1, signal.SIGKILL), died(2, signal.SIGTERM))
    assert fallen.cause is fallen.ranks[1]


def test_a_rank_that_was_told_to_end_is_never_the_cause_while_another_is():
    fallen = attempt(died(0, signal.SIGTERM), raised(1, LOST))
    assert fallen.cause is fallen.ranks[1]


def test_a_rank_that_fell_first_comes_before_those_that_had_to_be_killed():
    fallen = attempt(died(0, signal.SIGKILL), replace(died(1, signal.SIGKILL), fell_first=True))
    assert fallen.cause is fallen.ranks[1]


def test_a_rank_that_died_on_its_way_out_comes_before_those_ended_for_it():
    crashed = replace(finished(0), exit_code=-signal.SIGABRT)
    fallen = attempt(replace(finished(1), exit_code=-signal.SIGTERM), crashed)
    assert fallen.cause is crashed
    assert "destroy_process_group()" in hint(crashed, 0)


def test_an_error_that_came_of_a_lost_connection_is_an_effect_too():
    wrapped = raised(0, "TrainingFailed: gave up", time=1.0, traceback=f"{LOST}\n\nThe above exception ...")
    fallen = attempt(wrapped, died(1, signal.SIGSEGV))
    assert fallen.cause is fallen.ranks[1]


def test_ranks_that_left_without_an_error_are_named_where_others_lost_them():
    fallen = attempt(raised(0, LOST), finished(1))
    assert [rank.rank for rank in fallen.left_early] == [1]
    assert attempt(raised(0, "ValueError: a"), finished(1)).left_early == ()


@pytest.mark.parametrize(
    ("ranks", "code"),
    [
        ((finished(0), finished(1)), 0),
        ((finished(0), raised(1, "ValueError: a", code=3)), 3),
        ((raised(0, LOST), died(1, signal.SIGKILL)), 137),
    ],
)
def test_the_exit_code_is_that_of_the_rank_to_blame(ranks, code):
    assert LaunchEnd(attempts=(attempt(*ranks),)).exit_code == code


def test_an_interrupted_launch_exits_as_python_does():
    assert LaunchEnd(attempts=(attempt(died(0, signal.SIGTERM)),), interrupted="SIGINT").exit_code == 130


def test_ranks_that_fill_the_same_gpu_are_found():
    assert crowded([finished(0, 0), finished(1, 0), finished(2, 2)]) == {0: [0, 1]}


def test_a_sigkill_is_the_kernels_when_its_count_rose():
    assert "The kernel killed a process" in hint(died(0, signal.SIGKILL), kernel_kills=1)
    assert "dmesg" in hint(died(0, signal.SIGKILL), kernel_kills=0)


def test_a_missing_main_guard_is_found_in_the_log_of_the_rank(tmp_path):
    files = RunFolder(tmp_path).files(0)
    files.err.write_text("RuntimeError:\n  current process has finished its bootstrapping phase.\n")
    ending = RankEnding(rank=0, time=0.0, exit_code=1, ended="raised", error="RuntimeError: worker exited")
    assert "no main guard" in hint(RankResult(rank=0, exit_code=1, ending=ending, files=files), 0)


def test_an_ending_is_read_as_it_was_written(tmp_path):
    ending = RankEnding(rank=3, time=1.5, exit_code=1, ended="raised", error="ValueError: ü", log_size=7)
    ending.write(tmp_path / "rank-3.json")
    assert read_ending(tmp_path / "rank-3.json") == ending
    assert read_ending(tmp_path / "rank-4.json") is None


def test_a_folder_is_never_shared(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert [str(make_folder(None, "train").path) for _ in range(2)] == ["train.launch", "train-2.launch"]
