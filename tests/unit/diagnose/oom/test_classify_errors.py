"""Classification of errors: the table of messages, the sizes they report, and exception chains."""

import subprocess
import sys
import weakref

import oom_messages as texts
import pytest
import torch

from legroom.diagnose.oom.known_messages import MESSAGE_PATTERNS, longest_literal
from legroom.diagnose.oom.recognize import Certainty, classify, device_memory, is_oom, low_memory
from legroom.observe.virtual.gpu import VirtualGPU
from legroom.units import GiB, KiB, MiB

TABLE = [
    *((text, Certainty.SURE, source) for text, source in texts.SURE),
    *((text, Certainty.LIKELY, source) for text, source in texts.LIKELY),
    *((text, Certainty.DISGUISED, source) for text, source in texts.DISGUISED),
    *((text, Certainty.HOST, source) for text, source in texts.HOST),
    *((text, Certainty.PINNED, source) for text, source in texts.PINNED),
    *((text, Certainty.NOT_MEMORY, "") for text in texts.NOT_MEMORY),
]


def nearly_full(_index: int | None) -> tuple[int, int]:
    return 100 * MiB, 24 * GiB


def mostly_free(_index: int | None) -> tuple[int, int]:
    return 20 * GiB, 24 * GiB


def raised(error: BaseException, *, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except BaseException as caught:
        return caught


def raised_while_handling(error: BaseException, first: BaseException) -> BaseException:
    try:
        try:
            raise first
        except BaseException:
            raise error  # noqa: B904  (tests the context)
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(("text", "certainty", "source"), TABLE)
def test_text_is_classified(text, certainty, source):
    result = classify(text)
    assert (result.certainty, result.source) == (certainty, source)


@pytest.mark.parametrize(("text", "certainty", "source"), TABLE)
def test_exception_with_the_text_is_classified(text, certainty, source):
    result = classify(raised(RuntimeError(text)), free_memory=nearly_full)
    assert (result.certainty, result.source) == (certainty, source)
    assert result.is_oom == (certainty in (Certainty.SURE, Certainty.LIKELY, Certainty.DISGUISED))


@pytest.mark.parametrize("text", [text for text, _ in texts.LIKELY + texts.DISGUISED])
def test_ambiguous_error_with_free_memory_is_not_oom(text):
    result = classify(RuntimeError(text), free_memory=mostly_free)
    assert not result.is_oom
    assert not result.is_memory
    assert "20.00 GiB of 24.00 GiB was free" in result.reason


def test_ambiguous_error_with_unknown_free_memory_is_not_oom():
    assert not classify(
        RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"), free_memory=lambda _: None
    ).is_oom


def test_failed_allocation_of_a_library_is_oom_if_free_memory_is_unknown():
    assert is_oom("cuDNN error: CUDNN_STATUS_ALLOC_FAILED")
    assert not is_oom("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")


def test_ambiguous_text_ignores_free_memory_of_this_machine():
    with VirtualGPU("256MiB"):
        full = torch.empty(240 * MiB, dtype=torch.uint8, device="cuda")
        assert is_oom(RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"))
        assert not is_oom("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED")
        del full


def test_low_memory_threshold_scales_with_the_device():
    assert low_memory(1 * GiB) == 256 * MiB
    assert low_memory(8 * GiB) == 512 * MiB
    assert low_memory(80 * GiB) == 4 * GiB


def test_memory_fraction_limits_free_memory():
    with VirtualGPU("8GiB"):
        assert device_memory() is None, "CUDA is not initialized"
        torch.cuda.init()
        assert device_memory() == (8 * GiB, 8 * GiB)
        torch.cuda.set_per_process_memory_fraction(0.125)
        kept = torch.empty(1000 * MiB, dtype=torch.uint8, device="cuda")
        assert device_memory() == (24 * MiB, 8 * GiB)
        del kept


def test_sizes_of_the_current_message_are_parsed():
    result = classify(texts.CUDA_NOW)
    assert result.device == 1
    assert result.requested == 546 * MiB
    assert result.capacity == int(15.77 * GiB)
    assert result.free == int(514.19 * MiB)
    assert result.allowed == 14 * GiB
    assert result.in_use == int(13.25 * GiB)
    assert result.allocated == int(12.5 * GiB)
    assert result.reserved == 13 * GiB
    assert result.others == 2 * GiB


def test_sizes_of_older_messages_are_parsed():
    result = classify(texts.CUDA_2_0)
    assert (result.device, result.requested, result.free) == (0, 20 * MiB, int(13.31 * MiB))
    assert (result.allocated, result.reserved) == (int(6.84 * GiB), int(6.88 * GiB))
    assert classify(texts.CUDA_1_1).reserved == int(1.1 * GiB)


def test_sizes_of_the_async_allocator_ignore_underflow():
    result = classify(texts.ASYNC)
    assert (result.requested, result.capacity, result.free) == (512 * KiB, 16 * GiB, 0)
    assert result.allowed is None


def test_sizes_of_mps_are_binary_units():
    result = classify(texts.MPS)
    assert (result.requested, result.allocated) == (GiB, int(17.5 * GiB))
    assert (result.others, result.allowed) == (4 * MiB, int(18.13 * GiB))


@pytest.mark.parametrize(
    ("text", "requested"),
    [
        (texts.HOST[0][0], 16 * GiB),
        (texts.HOST[4][0], int(7.45 * GiB)),
        ("Out of memory allocating 1,073,741,824 bytes (allocated so far: 512 bytes).", GiB),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.", 8 * GiB),
    ],
)
def test_requested_size_is_parsed(text, requested):
    assert classify(text).requested == requested


def test_virtual_gpu_error_reports_sizes():
    with VirtualGPU("64MiB,1GiB"):
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.empty(2 * GiB, dtype=torch.uint8, device="cuda:1")
        result = classify(caught.value)
    assert result.is_oom
    assert (result.device, result.requested, result.capacity) == (1, 2 * GiB, GiB)
    assert (result.free, result.allocated, result.reserved) == (GiB, 0, 0)


def test_error_in_a_long_log_is_found_with_its_sizes():
    noise = "[rank0] NCCL INFO Channel 00 : 0[1020] -> 2[1040] via SHM, out of 8\n" * 2000
    result = classify(f"{noise}torch.OutOfMemoryError: {texts.CUDA_NOW}\n{noise}")
    assert result.is_oom
    assert result.requested == 546 * MiB
    assert result.message.startswith("torch.OutOfMemoryError: CUDA out of memory.")


def test_literal_is_contained_in_every_match():
    for text, *_ in TABLE:
        for message in MESSAGE_PATTERNS:
            for literal, pattern in message.variants:
                assert len(literal.encode()) >= 4
                if pattern.search(text):
                    assert literal in text.lower()


@pytest.mark.parametrize(
    ("pattern", "literal"),
    [
        (r"(?:CU|HIP)FFT_(?:EXEC|SETUP)_FAILED", "_failed"),
        (r"out of resources?: memory", "out of resource"),
        (r"error[^\n]{0,12}: out of memory\b", ": out of memory"),
        (r"runtime error \(2\)\s*:", "runtime error (2)"),
        (r"torch\.(?:cuda\.)?Error", "torch."),
    ],
)
def test_longest_literal_of_a_pattern_is_found(pattern, literal):
    assert longest_literal(pattern) == literal


def test_torch_out_of_memory_error_is_recognized_by_class():
    assert is_oom(torch.OutOfMemoryError("Allocation failed"))


def test_torch_out_of_memory_error_with_an_impossible_size_is_not_oom():
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate more than 1EB memory.")
    assert not classify(raised(error)).is_memory


def test_memory_error_is_host_memory():
    assert classify(MemoryError()).certainty is Certainty.HOST
    assert classify(MemoryError("CUDA out of memory")).certainty is Certainty.SURE


def test_memory_error_of_a_gpu_library_is_device_memory():
    kind = type("OutOfMemoryError", (MemoryError,), {"__module__": "cupy.cuda.memory"})
    result = classify(kind("Out of memory allocating 512 bytes (allocated so far: 0 bytes)."))
    assert result.is_oom
    assert result.source == "cupy"


def test_enomem_is_host_memory():
    assert classify(OSError(12, "Cannot allocate memory")).certainty is Certainty.HOST


def test_value_error_is_not_oom():
    assert classify(ValueError("on_oom must be 'CUDA out of memory' or None")).certainty is (
        Certainty.NOT_MEMORY
    )


def test_cuda_oom_in_a_pinning_call_is_pinned_memory():
    def pin_memory() -> None:
        raise RuntimeError("CUDA error: out of memory" + texts.TRAILER)

    with pytest.raises(RuntimeError) as caught:
        pin_memory()
    result = classify(caught.value)
    assert result.certainty is Certainty.PINNED
    assert result.is_memory
    assert not result.is_oom


# --- chains


def oom() -> torch.OutOfMemoryError:
    return torch.OutOfMemoryError(texts.CUDA_NOW)


def test_cause_is_examined():
    result = classify(raised(ValueError("the step failed"), cause=oom()))
    assert result.is_oom
    assert result.link == "cause"
    assert result.requested == 546 * MiB


def test_context_is_examined():
    result = classify(raised_while_handling(UnboundLocalError("output"), oom()))
    assert result.is_oom
    assert result.link == "context"


def test_suppressed_context_is_ignored():
    error = raised_while_handling(ValueError("other"), oom())
    error.__suppress_context__ = True
    assert not is_oom(error)


def test_context_is_ignored_if_there_is_a_cause():
    error = raised_while_handling(ValueError("other"), oom())
    error.__cause__ = KeyError("why")
    assert not is_oom(error)


def test_certain_cause_takes_precedence_over_ambiguous_error():
    error = raised(RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"), cause=oom())
    assert classify(error, free_memory=mostly_free).certainty is Certainty.SURE


def test_interrupt_during_oom_handling_is_not_oom():
    for interruption in (KeyboardInterrupt(), SystemExit(1)):
        assert classify(raised_while_handling(interruption, oom())).certainty is Certainty.NOT_MEMORY


def test_cyclic_chain_terminates():
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert not is_oom(first)


def test_group_of_memory_errors_is_oom():
    result = classify(ExceptionGroup("workers", [oom(), ExceptionGroup("inner", [oom()])]))
    assert result.is_oom
    assert result.link == "group"


def test_group_with_another_error_is_not_oom():
    result = classify(ExceptionGroup("workers", [oom(), KeyError("label")]))
    assert not result.is_memory
    assert "also contains an error that is unrelated to memory" in result.reason


def test_exception_with_broken_str_is_not_oom():
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("out of memory")

    assert classify(MuteError()).certainty is Certainty.NOT_MEMORY


def test_result_does_not_keep_tensors_alive():
    def fail() -> None:
        activation = torch.empty(8)
        references.append(weakref.ref(activation))
        raise oom()

    references: list[weakref.ref[torch.Tensor]] = []
    result = None
    try:
        fail()
    except torch.OutOfMemoryError as error:
        result = classify(error)
    assert result is not None
    assert references[0]() is None


def test_classifier_does_not_import_torch():
    program = "import sys, legroom.diagnose.oom.recognize as oom; oom.classify('CUDA out of memory.'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_run_with_oom_as_cause_ended_with_oom(make_run):
    run = make_run()
    run.alloc(900)
    run.oom(200)
    run.ends(
        1,
        "raised",
        "trainer.StepFailed: step 7",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 200.00 MiB.\n\n"
        "The above exception was the direct cause of the following exception:\n\ntrainer.StepFailed: step 7\n",
    )
    assert run.report().as_json()["oom"]["ended_run"] is True


def test_run_whose_source_only_mentions_oom_did_not_end_with_oom(make_run):
    run = make_run()
    run.alloc(900)
    run.oom(200)
    run.ends(
        1,
        "raised",
        "KeyError: 'label'",
        '  File "a.py", line 3\n    if "CUDA out of memory" in text:\nKeyError: 1\n',
    )
    assert run.report().as_json()["oom"]["ended_run"] is False
