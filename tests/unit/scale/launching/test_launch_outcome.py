"""The choice of the rank that caused a failure, among several failed ranks."""

import signal
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from legroom.memory.capture.capture import CaptureWriter
from legroom.memory.event_base import Category, Phase
from legroom.memory.events import Alloc, Step
from legroom.scale.launching.elastic import reserved_port
from legroom.scale.launching.folder import LaunchFolder, RankExit, make_folder, read_exit
from legroom.scale.launching.hints import hint
from legroom.scale.launching.outcome import LaunchAttempt, LaunchResult, RankResult, shared_gpus

if not hasattr(signal, "SIGKILL"):
    pytest.skip("processes of this system are not killed by signals", allow_module_level=True)

LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:2978"


def raised(rank: int, error: str, *, time: float = 0.0, traceback: str = "", code: int = 1) -> RankResult:
    exit_record = RankExit(
        rank=rank, time=time, exit_code=code, ended="raised", error=error, traceback=traceback
    )
    return RankResult(
        rank=rank, exit_code=code, exit_record=exit_record, files=LaunchFolder(Path("x")).files(rank)
    )


def killed(rank: int, number: int) -> RankResult:
    return RankResult(
        rank=rank, exit_code=-number, exit_record=None, files=LaunchFolder(Path("x")).files(rank)
    )


def finished(rank: int, device: int | None = None) -> RankResult:
    exit_record = RankExit(
        rank=rank, time=9.0, exit_code=0, ended="finished", device=device, peak_allocated=1, capacity=2
    )
    return RankResult(
        rank=rank, exit_code=0, exit_record=exit_record, files=LaunchFolder(Path("x")).files(rank)
    )


def attempt(*ranks: RankResult) -> LaunchAttempt:
    return LaunchAttempt(number=0, seconds=1.0, ranks=ranks)


def test_the_figures_of_a_killed_rank_are_read_from_its_capture(tmp_path):
    files = LaunchFolder(tmp_path).files(1)
    alloc = Alloc(0.0, 1, 4096, 4096, 0, 0, Category.TEMPORARY, Phase.FORWARD, 0, "net", None, "aten.mm")
    with CaptureWriter(files.capture, run={"rank": 1}) as writer:
        writer.write(alloc)
        writer.write(Step(0.1, 2, 0.1, 0, 4096, 8192, 4096, 8192))
    for exit_record in (None, raised(1, "ValueError").exit_record):  # written before the figures are known
        result = RankResult(rank=1, exit_code=-9, exit_record=exit_record, files=files).as_json()
        assert result["peak_allocated_bytes"] == 4096
        assert result["steps"] == 3


def test_the_earliest_error_is_the_cause():
    cause = attempt(raised(0, "ValueError: b", time=2.0), raised(1, "ValueError: a", time=1.0)).cause
    assert cause is not None
    assert cause.rank == 1


def test_an_error_takes_precedence_over_an_earlier_lost_connection():
    failed = attempt(raised(0, LOST, time=1.0), raised(1, "ValueError: a", time=2.0))
    assert failed.cause is failed.ranks[1]
    assert failed.followers == (failed.ranks[0],)


def test_a_killed_rank_takes_precedence_over_lost_connections():
    failed = attempt(raised(0, LOST), killed(1, signal.SIGKILL), killed(2, signal.SIGTERM))
    assert failed.cause is failed.ranks[1]


def test_a_terminated_rank_is_not_the_cause_if_another_failed():
    failed = attempt(killed(0, signal.SIGTERM), raised(1, LOST))
    assert failed.cause is failed.ranks[1]


def test_the_rank_that_died_first_takes_precedence_over_ranks_killed_later():
    failed = attempt(killed(0, signal.SIGKILL), replace(killed(1, signal.SIGKILL), died_first=True))
    assert failed.cause is failed.ranks[1]


def test_a_rank_that_crashed_at_exit_takes_precedence_over_terminated_ranks():
    crashed = replace(finished(0), exit_code=-signal.SIGABRT)
    failed = attempt(replace(finished(1), exit_code=-signal.SIGTERM), crashed)
    assert failed.cause is crashed
    assert "destroy_process_group()" in hint(crashed, 0)


def test_an_error_caused_by_a_lost_connection_is_not_the_cause():
    wrapped = raised(0, "TrainingFailed: aborted", time=1.0, traceback=f"{LOST}\n\nThe above exception ...")
    failed = attempt(wrapped, killed(1, signal.SIGSEGV))
    assert failed.cause is failed.ranks[1]


def test_ranks_that_exited_early_are_listed():
    failed = attempt(raised(0, LOST), finished(1))
    assert [rank.rank for rank in failed.exited_early] == [1]
    assert attempt(raised(0, "ValueError: a"), finished(1)).exited_early == ()


@pytest.mark.parametrize(
    ("ranks", "code"),
    [
        ((finished(0), finished(1)), 0),
        ((finished(0), raised(1, "ValueError: a", code=3)), 3),
        ((raised(0, LOST), killed(1, signal.SIGKILL)), 137),
    ],
)
def test_the_exit_code_is_that_of_the_rank_that_caused_the_failure(ranks, code):
    assert LaunchResult(attempts=(attempt(*ranks),)).exit_code == code


def test_an_interrupted_launch_exits_with_130():
    assert LaunchResult(attempts=(attempt(killed(0, signal.SIGTERM)),), interrupted="SIGINT").exit_code == 130


def test_ranks_on_the_same_gpu_are_detected():
    assert shared_gpus([finished(0, 0), finished(1, 0), finished(2, 2)]) == {0: [0, 1]}


def test_a_sigkill_is_attributed_to_the_kernel_if_its_count_increased():
    assert "The kernel killed a process" in hint(killed(0, signal.SIGKILL), host_oom_kills=1)
    assert "dmesg" in hint(killed(0, signal.SIGKILL), host_oom_kills=0)


def test_a_missing_main_guard_is_detected_in_the_log(tmp_path):
    files = LaunchFolder(tmp_path).files(0)
    files.err.write_text("RuntimeError:\n  current process has finished its bootstrapping phase.\n")
    exit_record = RankExit(rank=0, time=0.0, exit_code=1, ended="raised", error="RuntimeError: worker exited")
    assert "no main guard" in hint(RankResult(rank=0, exit_code=1, exit_record=exit_record, files=files), 0)


def test_an_exit_record_is_read_as_written(tmp_path):
    exit_record = RankExit(rank=3, time=1.5, exit_code=1, ended="raised", error="ValueError: ü", log_size=7)
    exit_record.write(tmp_path / "rank-3.json")
    assert read_exit(tmp_path / "rank-3.json") == exit_record
    assert read_exit(tmp_path / "rank-4.json") is None


def test_every_launch_has_its_own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert [str(make_folder(None, "train").path) for _ in range(2)] == ["train.launch", "train-2.launch"]


def test_a_reserved_port_can_be_used_by_rank_zero_and_is_not_assigned_to_others():
    with reserved_port() as reserved, socket.socket(socket.AF_INET6) as store:
        port = reserved.getsockname()[1]
        store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as torch's store does
        store.bind(("::", port))
        store.listen()
        others = [reserved_port() for _ in range(50)]
        assert port not in {other.getsockname()[1] for other in others}
        for other in others:
            other.close()
