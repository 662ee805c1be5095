"""Logs with several errors: the error that ended the program is explained, not its consequences or handled errors."""

import pytest

from legroom.diagnose.explain.consequences import is_recovered
from legroom.diagnose.explain.explain import explain
from legroom.diagnose.explain.log_reader import search_log


def traceback_of(error: str, prefix: str = "") -> str:
    lines = [
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in main',
        "    step(batch)",
        error,
    ]
    return "".join(f"{prefix}{line}\n" for line in lines)


KEY_ERROR = traceback_of("KeyError: 'labels'", "[rank3]: ")
DISK_FULL = traceback_of("OSError: [Errno 28] No space left on device", "[rank0]: ")
TIMEOUT = (
    "[rank1]:[E ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, "
    "OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600060 milliseconds before timing out.\n"
)
LOST_PEER = traceback_of(
    "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, remote process exited or there was a "
    "network error, NCCL version 2.26.2\nncclRemoteError: A call failed possibly due to a network error",
    "[rank1]: ",
)
GLOO_LOST_PEER = traceback_of(
    "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:10895"
)
STEPS = "".join(f"step {number} | loss 2.{number}\n" for number in range(10, 80, 10))
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"


def summary(rank: int, exit_code: int) -> str:
    """The end of torchrun's report: another failed rank, and the rank that failed first."""
    return (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\ntrain.py FAILED\nFailures:\n"
        "  rank      : 2 (local_rank: 2)\n  exitcode  : -9 (pid: 12)\n"
        "  traceback : Signal 9 (SIGKILL) received by PID 12\n"
        f"Root Cause (first observed failure):\n  rank      : {rank}\n  exitcode  : {exit_code} (pid: 11)\n"
    )


@pytest.mark.parametrize(
    "consequence", [TIMEOUT, LOST_PEER, GLOO_LOST_PEER, TIMEOUT + LOST_PEER, summary(3, 1)]
)
@pytest.mark.parametrize(
    ("cause", "code"),
    [
        (KEY_ERROR, ""),
        (DISK_FULL, "LG780"),
        (traceback_of("RuntimeError: CUDA error: device-side assert triggered", "[rank2]: "), "LG710"),
    ],
)
def test_error_of_the_failed_rank_is_explained_instead_of_its_consequences(
    cause: str, code: str, consequence: str
) -> None:
    explanation = explain(STEPS + cause + consequence)
    assert (explanation.kind, explanation.code) == ("not-memory", code)
    assert cause.splitlines()[-1].endswith(explanation.message)


@pytest.mark.parametrize("consequence", [TIMEOUT, LOST_PEER])
def test_killed_rank_is_explained_instead_of_timeouts(consequence: str) -> None:
    killed = "Root Cause (first observed failure):\n  exitcode  : -9 (pid: 11)\n"
    assert explain(STEPS + consequence + killed).code == "LG705"


def test_rank_that_the_launcher_killed_is_not_the_cause() -> None:
    assert explain(STEPS + TIMEOUT + summary(1, -6)).code == "LG730"
    assert explain(STEPS + summary(1, 1)).code == "LG734"
    assert explain(STEPS + summary(1, -11)).code == "LG729"


def test_timeout_is_explained_if_the_earlier_error_was_handled() -> None:
    assert explain(traceback_of("KeyError: 'labels'") + STEPS + TIMEOUT).code == "LG730"


def test_interleaved_lines_of_other_processes_do_not_end_a_traceback() -> None:
    first = traceback_of("ZeroDivisionError: division by zero", "[rank0]: ").splitlines()
    second = LOST_PEER.splitlines()
    lines = [line for pair in zip(first, second, strict=False) for line in pair]
    assert explain("\n".join(lines)).message == "ZeroDivisionError: division by zero"


def test_error_in_a_thread_is_a_consequence_of_an_earlier_error() -> None:
    thread = "Exception in thread Thread-5 (_pin_memory_loop):\n" + traceback_of("EOFError")
    assert explain(traceback_of("KeyError: 'labels'") + thread).message == "KeyError: 'labels'"
    assert explain(STEPS + thread).message == "EOFError"


@pytest.mark.parametrize(
    "wrapper",
    [
        "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause.",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    ],
)
def test_error_that_refers_to_an_earlier_error_is_not_explained(wrapper: str) -> None:
    explanation = explain(traceback_of("KeyError: 'labels'") + traceback_of(wrapper) * 3)
    assert explanation.message == "KeyError: 'labels'"


def test_parent_that_kills_its_children_after_an_error_is_not_the_cause() -> None:
    log = traceback_of("KeyError: 'labels'") + "Received sigquit from a child process.\nKilled\n"
    assert explain(log).message == "KeyError: 'labels'"


def test_crash_is_more_informative_than_the_reasons_that_ray_lists() -> None:
    died = (
        "The actor died. There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to "
        "high memory usage. (2) ray stop --force is called. (3) The worker is crashed unexpectedly due to SIGSEGV or "
        "other unexpected errors.\n"
    )
    assert explain("Fatal Python error: Segmentation fault\n" + "frame\n" * 9 + died).code == "LG729"
    assert explain("starting\n" * 9 + died).code == "LG705"


@pytest.mark.parametrize(
    ("last", "kind", "code"),
    [
        (traceback_of("sqlite3.OperationalError: database is locked"), "not-memory", ""),
        ("torchrun: failed (exitcode: -9) local_rank: 0 (pid: 3) of binary: python\n", "host-oom", "LG705"),
        (DISK_FULL + summary(0, 1), "not-memory", "LG780"),
    ],
)
def test_handled_out_of_memory_error_is_not_the_cause_of_a_later_failure(
    last: str, kind: str, code: str
) -> None:
    explanation = explain(f"WARNING {OOM}\n{STEPS}{last}")
    assert (explanation.kind, explanation.code) == (kind, code)


def test_handled_error_is_explained_if_no_other_error_follows() -> None:
    assert explain(f"WARNING {OOM}\n{STEPS}").code == "LG700"


def test_error_that_a_pool_raises_again_has_the_frames_of_the_worker() -> None:
    again = traceback_of("KeyError: 'text'").replace("train.py", "/site-packages/datasets/utils/py_utils.py")
    chain = "\nThe above exception was the direct cause of the following exception:\n\n"
    assert explain(traceback_of("KeyError: 'text'") + chain + again).code == ""


def test_program_made_progress_only_if_several_steps_follow() -> None:
    assert is_recovered(STEPS)
    assert not is_recovered("step 10\n" * 20)  # every rank prints the step that it stopped at
    assert not is_recovered(traceback_of("ValueError") + STEPS)


def test_cause_in_an_earlier_chunk_is_found() -> None:
    found = search_log([STEPS + KEY_ERROR, "NCCL INFO\n" * 200_000, TIMEOUT])
    assert found.unknown is not None
    assert found.unknown.text == "KeyError: 'labels'"
