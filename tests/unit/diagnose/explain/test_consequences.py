"""Logs with several errors: the error that ended the program is explained, not its consequences or handled errors."""

import json
import re
from pathlib import Path

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


def test_causes_of_causes_are_followed() -> None:
    """A rank waits for the rank whose library call failed, because of a kernel that failed before."""
    log = (
        "Loss.cu:250: block: [0,0,0], thread: [5,0,0] Assertion `t >= 0 && t < n_classes` failed.\n"
        + traceback_of(
            "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
        )
        + TIMEOUT
    )
    assert explain(log).code == "LG710"


def test_crashed_rank_is_explained_instead_of_timeouts() -> None:
    crashed = "Root Cause (first observed failure):\n  exitcode  : -11 (pid: 11)\n"
    assert explain(STEPS + TIMEOUT + crashed).code == "LG729"


@pytest.mark.parametrize(
    "message", ["RuntimeError: Simulation crashed.", "Exception: Training failed", "SystemExit: 1"]
)
def test_message_without_a_reason_does_not_hide_the_error_before_it(message: str) -> None:
    for cause, code in ((KEY_ERROR, ""), (DISK_FULL, "LG780")):
        assert explain(cause + "1 of 1 clients failed\n" + traceback_of(message)).code == code
    assert explain(STEPS + traceback_of(message)).message.startswith(message)


def test_later_warning_that_is_retried_does_not_hide_the_error() -> None:
    warning = (
        "wandb: WARNING Retry attempt failed: HTTPSConnectionPool: Max retries exceeded with url: /graphql\n"
    )
    assert explain(DISK_FULL + warning).code == "LG780"


def test_indented_log_is_read_like_one_without_indentation() -> None:
    log = "".join(f"    {line}\n" for line in (STEPS + KEY_ERROR + TIMEOUT).splitlines())
    assert explain(log).message == "KeyError: 'labels'"


def test_log_in_one_json_record_is_read_line_by_line() -> None:
    record = json.dumps({"level": "error", "msg": STEPS + KEY_ERROR + TIMEOUT})
    explanation = explain("\n" * 4 + record)
    assert (explanation.message, explanation.line) == ("KeyError: 'labels'", 5)


def test_prefix_that_a_logger_repeats_is_removed() -> None:
    log = traceback_of("KeyError: 'labels'", "12:00:01.123 | ERROR | rank=1 | ") + TIMEOUT
    assert explain(log).message == "KeyError: 'labels'"


@pytest.mark.parametrize(
    "at_exit",
    [
        "terminate called without an active exception\nAborted (core dumped)\n",
        "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: driver shutting down\n",
        "Segmentation fault (core dumped)\n",
    ],
)
def test_crash_while_a_process_exits_is_a_consequence(at_exit: str) -> None:
    assert explain(traceback_of("KeyError: 'labels'") + at_exit).message == "KeyError: 'labels'"
    assert explain(traceback_of("KeyError: 'labels'") + STEPS + "line\n" * 40 + at_exit).code in (
        "LG728",
        "LG729",
    )


def test_known_error_in_a_thread_does_not_hide_the_error_of_the_main_thread() -> None:
    thread = "Exception in thread Thread-9 (flush):\n" + traceback_of(
        "OSError: [Errno 28] No space left on device"
    )
    assert (
        explain(
            traceback_of("RuntimeError: Trying to backward through the graph a second time") + thread
        ).code
        == "LG770"
    )
    assert explain(thread + traceback_of("RuntimeError: checkpoint writer failed")).code == "LG780"


def test_process_that_could_not_read_from_its_parent_is_a_consequence() -> None:
    child = (
        'Traceback (most recent call last):\n  File "multiprocessing/spawn.py", line 126, in _main\n'
        "    self = reduction.pickle.load(from_parent)\nEOFError: Ran out of input\n"
    )
    parent = traceback_of("FileNotFoundError: [Errno 2] No such file or directory: 'train.csv'")
    assert explain(parent + child).code == "LG783"
    assert explain(child).code == "LG743"


TAILS = {
    "timeout": TIMEOUT + summary(3, 1),
    "lost peer": LOST_PEER + GLOO_LOST_PEER,
    "killed by the launcher": "Unable to shutdown process 12 via Signals.SIGTERM, forcefully exiting via Signals.SIGKILL\n"
    + summary(3, 1),
    "scheduler": "srun: error: n1: task 5: Exited with exit code 1\nslurmstepd: error: *** STEP 8.0 ON n1 CANCELLED AT 2025-04-02T11:20:31 ***\n",
    "actor": traceback_of(
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."
    ),
    "parent": "Received sigquit from a child process. It usually means the child failed.\nKilled\n",
    "thread": "Exception in thread Thread-5 (_pin_memory_loop):\n"
    + traceback_of("ConnectionRefusedError: [Errno 111] Connection refused"),
    "queue": traceback_of("_queue.Empty"),
}
"""Messages that follow after one process has failed."""
WAITING = {"LG705", "LG706", "LG729", "LG730", "LG731", "LG733", "LG734", "LG735", "LG740"}


def errors_by_code() -> dict[str, str]:
    """One exception of each code in the tables, except for codes that may be consequences."""
    folder = Path(__file__).parents[3] / "data" / "errors"
    entries = [
        entry
        for file in sorted(folder.glob("heldout*.json"))
        for entry in json.loads(file.read_text("utf-8"))
    ]
    return {
        entry["code"]: entry["text"].strip()
        for entry in entries
        if entry["code"] not in WAITING
        and re.fullmatch(r"(?:\w+\.)*\w*(?:Error|Exception): [^\n]{1,300}", entry["text"].strip())
    }


@pytest.mark.slow
@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("prefix", ["", "[rank2]: "])
def test_consequences_do_not_change_the_explanation(tail: str, prefix: str) -> None:
    errors = errors_by_code()
    assert len(errors) > 20
    for error in errors.values():
        log = STEPS + traceback_of(error, prefix)
        alone, followed = explain(log), explain(log + TAILS[tail])
        assert (alone.kind, alone.code) == (followed.kind, followed.code), error


@pytest.mark.slow
@pytest.mark.parametrize(
    "handled",
    [
        f"WARNING {OOM}\nskipping this batch\n",
        traceback_of(OOM),
        "step 4: loss is nan, skipping\n",
        TIMEOUT + "Worker group FAILED. 3/3 attempts left; will restart worker group\n",
    ],
)
def test_handled_errors_do_not_change_the_explanation(handled: str) -> None:
    for error in errors_by_code().values():
        log = STEPS + traceback_of(error, "[rank2]: ") + summary(2, 1)
        alone, after = explain(log), explain(handled + log)
        assert (alone.kind, alone.code) == (after.kind, after.code), error


REMARK = "\nBefore the update I only got CUDA out of memory when the batch size was above 32.\n"
FINALIZER = (
    "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f1>\n"
    + traceback_of("AssertionError: can only test a child process")
)


@pytest.mark.parametrize(
    "added",
    [
        pytest.param(REMARK, id="remark"),
        pytest.param(FINALIZER, id="finalizer"),
        pytest.param(summary(2, 1), id="torchrun"),
        pytest.param("srun: error: node3: tasks 0-3: Exited with exit code 1\n", id="srun"),
        pytest.param("wandb: Waiting for W&B process to finish... (failed 1).\n", id="wandb"),
    ],
)
def test_text_after_an_error_does_not_change_the_explanation(added: str) -> None:
    for error in errors_by_code().values():
        for log in (traceback_of(error), f"{error}\n"):
            alone, longer = explain(log), explain(log + added)
            assert (alone.kind, alone.code) == (longer.kind, longer.code), log


def test_source_line_of_a_traceback_is_not_a_message() -> None:
    log = (
        'Traceback (most recent call last):\n  File "train.py", line 3, in main\n'
        "    assert size % n == 0  # otherwise CUDA out of memory\nAssertionError\n"
    )
    assert (explain(log).kind, explain(log).message) == ("not-memory", "AssertionError")


def test_message_of_native_code_is_the_reason_for_the_exception_that_follows() -> None:
    native = "ggml_backend_cuda: allocating 144.00 MiB on device 4: cudaMalloc failed: out of memory\n"
    wrapper = traceback_of("pydantic_core.ValidationError: 1 validation error for Llama")
    assert explain(f"loading\n{native}failed to allocate compute buffers\n{wrapper}").code == "LG700"
    assert explain(f"loading\n{native}loaded\n{wrapper}").code != "LG700"  # the program continued


def test_name_of_the_host_does_not_state_which_memory_ran_out() -> None:
    killed = "Jan 11 03:12:55 gpu2 kernel: Out of memory: Killed process 41023 (python3) total-vm:412231340kB"
    assert (explain(killed).kind, explain(killed).code) == ("host-oom", "LG705")


@pytest.mark.parametrize("status", ["139", "132", "-1073740791", "3221226505"])
def test_exit_code_of_a_crash(status: str) -> None:
    assert explain(f"Process finished with exit code: {status}").code == "LG729"
