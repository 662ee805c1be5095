"""Errors that match no known message are classified by family; informal texts about memory count only on error lines."""

import pytest

from legroom.diagnose.explain.cuda_statuses import STATUSES, CudaStatus
from legroom.diagnose.explain.error_lines import ErrorLine
from legroom.diagnose.explain.explain import explain
from legroom.diagnose.explain.python_errors import classify_python_error


@pytest.mark.parametrize(
    ("code", "status"), [(code, each) for code, all_ in STATUSES.items() for each in all_]
)
def test_every_cuda_status_is_recognized_by_name_and_message(code: str, status: CudaStatus) -> None:
    for text in (f"terminated: cudaError{status.name}", f"RuntimeError: CUDA error: {status.message}"):
        explanation = explain(text)
        assert (explanation.kind, explanation.code) == ("not-memory", code), text


def test_cuda_status_number_is_recognized_but_an_error_rate_is_not() -> None:
    assert explain("RuntimeError: cuda runtime error (716) : ...").code == "LG711"
    assert explain("cuda error 3.5 percent of the images").kind == "unknown"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("RuntimeError: frobnicate: expected 3 channels in the second dimension, got 7", "LG716"),
        ("ValueError: the sequences have different lengths, which is not supported", "LG716"),
        ("RuntimeError: fancy_kernel only supports bfloat16", "LG718"),
        ("RuntimeError: fancy_kernel: q is on cuda:0 and k on cpu", "LG713"),
        ("RuntimeError: entry 17 is out of bounds", "LG712"),
        ("RuntimeError: gradient of a frozen thing was asked for", "LG770"),
        ("SomeError: rendezvous was closed", "LG733"),
    ],
)  # fmt: skip
def test_unknown_message_is_classified_by_wording_as_likely(text: str, code: str) -> None:
    explanation = explain(text)
    assert (explanation.kind, explanation.code, explanation.certainty) == ("not-memory", code, "likely")


def test_type_error_has_a_family_only_for_dtypes() -> None:
    error = ErrorLine(line=1, kind="TypeError", text="TypeError: forward() got an unexpected argument 'size'")
    assert classify_python_error(error) == ("not-memory", "")
    assert explain("TypeError: Got unsupported ScalarType BFloat16").code == "LG718"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("OSError: [Errno 30] Read-only file system: 'out'", "LG783"),
        ("OSError: [WinError 112] the volume has no room left", "LG780"),
        ("BlockingIOError: [Errno 11] try later", "LG742"),
        ("zipfile.BadZipFile: this cannot be unpacked", "LG783"),
        ("http.client.RemoteDisconnected: the remote end is gone", "LG782"),
    ],
)
def test_error_number_or_module_of_the_exception_selects_the_page(text: str, code: str) -> None:
    assert (explain(text).kind, explain(text).code) == ("not-memory", code)


@pytest.mark.parametrize(
    "text",
    [
        "Failed running call_function add(*(FakeTensor(..., size=(4, 77)),), **{}):\nexpected shape [4, 77]",
        "RuntimeError when making fake tensor call\n  Explanation: Dynamo failed to run FX node with fake tensors: "
        "call_function add(*(FakeTensor(..., size=(4, 77)),), **{}): got RuntimeError('expected shape [4, 77]')",
    ],
)
def test_error_of_an_operation_inside_torch_compile_is_explained(text: str) -> None:
    explanation = explain(f"torch._dynamo.exc.TorchRuntimeError: {text}")
    assert (explanation.code, explanation.certainty) == ("LG716", "likely")
    assert explain("torch._dynamo.exc.TorchRuntimeError: something else").code == "LG752"


@pytest.mark.parametrize(("free", "kind"), [(41156608, "oom"), (20_000_000_000, "not-memory")])
def test_free_memory_in_the_log_decides_an_ambiguous_error(free: int, kind: str) -> None:
    explanation = explain(
        "E0611 14:21:07 cuda_dnn.cc:521] could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR\n"
        f"E0611 14:21:07 cuda_dnn.cc:525] Memory usage: {free} bytes free, 25388515328 bytes total."
    )
    assert explanation.kind == kind


def test_scheduler_stop_is_explained_but_an_oom_kill_before_it_is_the_cause() -> None:
    cancelled = "slurmstepd: error: *** STEP 9.0 ON n1 CANCELLED AT 2024-05-17T17:58:10 ***"
    assert explain(cancelled.replace(" ***", " DUE TO TIME LIMIT ***", 1)).code == "LG735"
    assert explain(cancelled).code == "LG735"
    oom = "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=9.0\n"
    assert explain(oom + cancelled).code == "LG705"


def test_warning_is_not_called_an_error() -> None:
    assert explain("a.py:3: FutureWarning: this name goes away").sentence.startswith("This is a warning")


def test_unknown_error_that_mentions_memory_stays_unknown() -> None:
    assert explain("LibraryError: the arena of memory is gone").kind == "unknown"
    assert explain("LibraryError: this memory format is strange").kind == "not-memory"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Could not allocate tensor: there is not enough GPU video memory available!", "oom"),
        ("error: the job ran out of system memory", "host-oom"),
        ("fatal: failed to allocate 52 MB", "disguised-oom"),
        ("we avoid running out of GPU memory by a smaller batch", "unknown"),
        ("note: set expandable_segments:True to avoid CUDA out of memory errors", "unknown"),
        ("usage: train.py [--retry N]  retry when CUDA out of memory", "unknown"),
        (
            "RuntimeError: CUDA out of memory. Tried to allocate 2 MiB. Try this to avoid fragmentation.",
            "oom",
        ),
        ("AssertionError: expected CUDA OOM to be raised", "not-memory"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'cuda_out_of_memory.log'", "not-memory"),
        ("redis.exceptions.OutOfMemoryError: OOM command not allowed", "unknown"),
        ("srun: error: cuda07: task 0: Out Of Memory", "host-oom"),
        ("INFO the handler for out of memory was installed", "unknown"),
    ],
)
def test_informal_memory_message_counts_only_on_error_lines(text: str, kind: str) -> None:
    assert explain(text).kind == kind


class TestLines:
    def test_line_marked_as_error_is_recognized(self) -> None:
        explanation = explain("[2024-01-01 10:00:00] [ERROR] trainer: configuration is broken\nbye")
        assert (explanation.kind, explanation.message) == (
            "not-memory",
            "[ERROR] trainer: configuration is broken",
        )

    def test_metric_called_error_is_not_an_error(self) -> None:
        assert explain("epoch 3 loss 0.2 error: 0.31\nERROR 0.3").kind == "unknown"

    def test_error_line_of_a_notebook_traceback_is_found(self) -> None:
        explanation = explain(
            "RuntimeError          Traceback (most recent call last)\nCell In[3], line 5\n      4 x = 1\n----> 5 f(x)\n\n"
            "File ~/lib/thing.py:10, in f(x)\n---> 10 return g(x)\n\nRuntimeError: 3 widgets expected\n"
        )
        assert (explanation.kind, explanation.message, explanation.line) == (
            "not-memory",
            "RuntimeError: 3 widgets expected",
            9,
        )

    def test_exception_without_error_suffix_ends_a_traceback(self) -> None:
        explanation = explain(
            'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\nqueue.Empty\n'
        )
        assert (explanation.kind, explanation.message) == ("not-memory", "queue.Empty")

    def test_warning_is_not_an_out_of_memory_error(self) -> None:
        assert explain("a.py:3: UserWarning: something is deprecated\n  f(x)").kind == "not-memory"


def test_native_crash_has_its_page_unless_an_error_precedes_it() -> None:
    assert explain("step 10\nSegmentation fault (core dumped)").code == "LG729"
    assert explain("Process finished with exit code 139 (interrupted by signal 11: SIGSEGV)").code == "LG729"
    assert explain("Process finished with exit code 1").code == "LG734"
    text = "RuntimeError: CUDA error: device-side assert triggered\nAborted (core dumped)"
    assert explain(text).code == "LG710"


class TestWhichError:
    @pytest.mark.parametrize("status", ["CUBLAS_STATUS_NOT_INITIALIZED", "CUBLAS_STATUS_ALLOC_FAILED"])
    def test_library_failure_after_a_kernel_assertion_is_a_consequence(self, status: str) -> None:
        explanation = explain(
            "Indexing.cu:1146: block: [84,0,0], thread: [80,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"
            f"RuntimeError: CUDA error: {status} when calling `cublasCreate(handle)`"
        )
        assert (explanation.kind, explanation.code) == ("not-memory", "LG710")

    def test_nccl_info_lines_are_not_errors(self) -> None:
        explanation = explain(
            "host:1 [0] NCCL INFO Plugin load returned 2 : cannot open shared object file\nNCCL version 2.18"
        )
        assert explanation.kind == "unknown"

    def test_traceback_with_logger_prefix_is_read(self) -> None:
        prefix = "(Engine pid=1) ERROR 06-23 06:27:21 [core.py:1229] "
        lines = (
            "Traceback (most recent call last):",
            '  File "a.py", line 3, in run',
            "    assert x",
            "AssertionError",
        )
        explanation = explain("\n".join(prefix + line for line in lines))
        assert (explanation.kind, explanation.message) == ("not-memory", "AssertionError")

    def test_uninformative_error_soon_after_oom_is_its_consequence(self) -> None:
        first = "allocating 144.00 MiB on device 0: cudaMalloc failed: out of memory\n"
        then = 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\nWrapperError: could not load it'
        assert explain(first + then).code == "LG700"
        assert explain(first.replace("memory\n", "memory, retrying with half\n") + then).kind != "oom"

    def test_cleanup_traceback_is_not_the_error(self) -> None:
        explanation = explain(
            "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
            "Exception ignored in: <function Iter.__del__ at 0x1>\nTraceback (most recent call last):\n"
            '  File "loader.py", line 9, in __del__\nAttributeError: no attribute _workers'
        )
        assert explanation.kind == "oom"

    def test_nccl_failure_is_explained_by_the_failed_call_before_it(self) -> None:
        explanation = explain(
            "host:7:9 [0] include/alloc.h:102 NCCL WARN Cuda failure 1 'invalid argument'\n"
            "RuntimeError: NCCL Error 1: unhandled cuda error (run with NCCL_DEBUG=INFO for details)"
        )
        assert explanation.kind == "not-memory"

    def test_scheduler_oom_on_a_node_named_gpu_is_host_memory(self) -> None:
        assert explain("srun: error: gpu20-15: task 0: Out Of Memory").kind == "host-oom"

    def test_terminal_colors_do_not_hide_an_error(self) -> None:
        assert explain("\x1b[31mRuntimeError\x1b[0m: CUDA \x1b[1mout of memory\x1b[0m.").kind == "oom"

    def test_truncated_notebook_traceback_is_classified_by_its_first_line(self) -> None:
        explanation = explain(
            "OutOfMemoryError          Traceback (most recent call last)\nCell In[3], line 5\n----> 5 f(x)"
        )
        assert (explanation.kind, explanation.certainty) == ("oom", "likely")


@pytest.mark.parametrize(
    ("error", "file", "code"),
    [
        ("ValueError: nothing there", "/site-packages/huggingface_hub/file_download.py", "LG782"),
        ("KeyError: 'text'", "C:\\\\env\\\\site-packages\\\\datasets\\\\table.py", "LG783"),
        ("SomethingError: 7", "/site-packages/torch/_inductor/graph.py", "LG752"),
        ("SomethingError: 7", "/home/me/train.py", ""),
    ],
)
def test_uninformative_message_is_classified_by_the_raising_library(error: str, file: str, code: str) -> None:
    explanation = explain(
        f'Traceback (most recent call last):\n  File "a.py", line 3\n    f()\n  File "{file}", line 9, in g\n{error}'
    )
    assert (explanation.kind, explanation.code) == ("not-memory", code)


@pytest.mark.parametrize(
    "text",
    [
        "Process finished with exit code 137 (interrupted by signal 9: SIGKILL)", "zsh: killed     python train.py", "Killed: 9",
        "[1]    4711 killed     python train.py", "command terminated with exit code 137", "subprocess returned exit status -9.",
    ],
)  # fmt: skip
def test_killed_process_is_recognized_in_every_shell_wording(text: str) -> None:
    assert (explain(text).kind, explain(text).code) == ("host-oom", "LG705")


@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory. Tried to allocate more than 1EB memory.",
        "CUDA out of memory. Tried to allocate 372529.03 GiB. GPU 0 has a total capacity of 79.15 GiB of which 70 GiB is free.",
        "MPS backend out of memory (MPS allocated: 1.2 GB). Tried to allocate 8589934592.00 GB on private pool.",
        "Unable to allocate 7.28 EiB for an array with shape (1000000000, 1000000000) and data type float64",
        "Out of memory allocating 18,446,744,073,709,551,104 bytes (allocated so far: 0 bytes).",
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 18446744073709551608 bytes.",
        "Trying to create tensor with negative dimension -1: [-1, 4]",
        "Storage size calculation overflowed with sizes=[4611686018427387904, 8]",
        "numel: integer multiplication overflow",
    ],
)
def test_impossible_size_is_a_wrong_shape_and_not_a_lack_of_memory(text: str) -> None:
    for error in (f"RuntimeError: {text}", RuntimeError(text)):
        explanation = explain(error)
        assert (explanation.kind, explanation.code) == ("not-memory", "LG719"), error


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("CUDA out of memory. Tried to allocate 9000.00 GiB. GPU 0 has a total capacity of 79 GiB.", "LG700"),
        (
            "CUDA out of memory. Tried to allocate 90000.00 MiB. GPU 0 has a total capacity of 79 GiB.",
            "LG700",
        ),
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 40000000000 bytes.", "LG702"),
        ("Unable to allocate 3.64 TiB for an array with shape (1000000000, 500)", "LG702"),
    ],
)
def test_large_but_possible_size_is_a_lack_of_memory(text: str, code: str) -> None:
    assert explain(f"RuntimeError: {text}").code == code
