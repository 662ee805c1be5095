"""One classifier of errors: its table, its figures, and the chains of exceptions it walks."""

import subprocess
import sys
import weakref

import oom_texts as texts
import pytest
import torch

from legroom.diagnose.oom.messages import SPELLINGS, longest_plain_part
from legroom.diagnose.oom.recognize import Certainty, classify, device_memory, is_oom, low_memory
from legroom.observe.virtual.gpu import VirtualGPU
from legroom.units import GiB, KiB, MiB

TABLE = [
    *((text, Certainty.SURE, source) for text, source in texts.SURE),
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
            raise error  # noqa: B904  (that is the point)
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(("text", "certainty", "source"), TABLE)
def test_a_text_is_recognised(text, certainty, source):
    failure = classify(text)
    assert (failure.certainty, failure.source) == (certainty, source)


@pytest.mark.parametrize(("text", "certainty", "source"), TABLE)
def test_an_exception_with_the_text_is_recognised(text, certainty, source):
    failure = classify(raised(RuntimeError(text)), free_memory=nearly_full)
    assert (failure.certainty, failure.source) == (certainty, source)
    assert failure.is_oom == (certainty in (Certainty.SURE, Certainty.DISGUISED))


@pytest.mark.parametrize("text", [text for text, _ in texts.DISGUISED])
def test_a_disguised_error_is_no_oom_while_memory_is_free(text):
    failure = classify(RuntimeError(text), free_memory=mostly_free)
    assert not failure.is_oom
    assert not failure.is_memory
    assert "20.00 GiB of 24.00 GiB were free" in failure.reason


def test_a_disguised_error_is_no_oom_where_nobody_knows_what_is_free():
    assert not classify(
        RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"), free_memory=lambda _: None
    ).is_oom


def test_a_disguised_text_is_not_judged_by_this_machine():
    with VirtualGPU("256MiB"):
        full = torch.empty(240 * MiB, dtype=torch.uint8, device="cuda")
        assert is_oom(RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"))
        assert not is_oom("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED")
        del full


def test_what_counts_as_little_memory_grows_with_the_device():
    assert low_memory(1 * GiB) == 256 * MiB
    assert low_memory(8 * GiB) == 512 * MiB
    assert low_memory(80 * GiB) == 4 * GiB


def test_a_fraction_that_leaves_nothing_makes_memory_low():
    with VirtualGPU("8GiB"):
        assert device_memory() == (8 * GiB, 8 * GiB)
        torch.cuda.set_per_process_memory_fraction(0.125)
        kept = torch.empty(1000 * MiB, dtype=torch.uint8, device="cuda")
        assert device_memory() == (24 * MiB, 8 * GiB)
        del kept


def test_figures_of_the_present_wording():
    failure = classify(texts.CUDA_NOW)
    assert failure.device == 1
    assert failure.requested == 546 * MiB
    assert failure.capacity == int(15.77 * GiB)
    assert failure.free == int(514.19 * MiB)
    assert failure.allowed == 14 * GiB
    assert failure.in_use == int(13.25 * GiB)
    assert failure.allocated == int(12.5 * GiB)
    assert failure.reserved == 13 * GiB
    assert failure.others == 2 * GiB


def test_figures_of_the_older_wording():
    failure = classify(texts.CUDA_2_0)
    assert (failure.device, failure.requested, failure.free) == (0, 20 * MiB, int(13.31 * MiB))
    assert (failure.allocated, failure.reserved) == (int(6.84 * GiB), int(6.88 * GiB))
    assert classify(texts.CUDA_1_1).reserved == int(1.1 * GiB)


def test_figures_of_the_asynchronous_allocator_leave_out_what_went_below_zero():
    failure = classify(texts.ASYNC)
    assert (failure.requested, failure.capacity, failure.free) == (512 * KiB, 16 * GiB, 0)
    assert failure.allowed is None


def test_figures_of_a_mac_are_powers_of_1024_whatever_they_are_called():
    failure = classify(texts.MPS)
    assert (failure.requested, failure.allocated) == (GiB, int(17.5 * GiB))
    assert (failure.others, failure.allowed) == (4 * MiB, int(18.13 * GiB))


@pytest.mark.parametrize(
    ("text", "requested"),
    [
        (texts.HOST[0][0], 16 * GiB),
        (texts.HOST[4][0], int(7.45 * GiB)),
        ("Out of memory allocating 1,073,741,824 bytes (allocated so far: 512 bytes).", GiB),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.", 8 * GiB),
    ],
)
def test_what_was_asked_for_is_read(text, requested):
    assert classify(text).requested == requested


def test_a_virtual_gpu_s_error_tells_its_figures():
    with VirtualGPU("64MiB,1GiB"):
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.empty(2 * GiB, dtype=torch.uint8, device="cuda:1")
        failure = classify(caught.value)
    assert failure.is_oom
    assert (failure.device, failure.requested, failure.capacity) == (1, 2 * GiB, GiB)
    assert (failure.free, failure.allocated, failure.reserved) == (GiB, 0, 0)


def test_an_error_in_a_long_log_is_found_with_its_figures():
    noise = "[rank0] NCCL INFO Channel 00 : 0[1020] -> 2[1040] via SHM, out of 8\n" * 2000
    failure = classify(f"{noise}torch.OutOfMemoryError: {texts.CUDA_NOW}\n{noise}")
    assert failure.is_oom
    assert failure.requested == 546 * MiB
    assert failure.message.startswith("torch.OutOfMemoryError: CUDA out of memory.")


def test_the_plain_part_of_a_spelling_is_in_all_that_it_matches():
    for text, *_ in TABLE:
        for spelling in SPELLINGS:
            for plain, pattern in spelling.ways:
                assert len(plain.encode()) >= 4
                if pattern.search(text):
                    assert plain in text.lower()


@pytest.mark.parametrize(
    ("pattern", "plain"),
    [
        (r"(?:CU|HIP)FFT_(?:EXEC|SETUP)_FAILED", "_failed"),
        (r"out of resources?: memory", "out of resource"),
        (r"error[^\n]{0,12}: out of memory\b", ": out of memory"),
        (r"runtime error \(2\)\s*:", "runtime error (2)"),
        (r"torch\.(?:cuda\.)?Error", "torch."),
    ],
)
def test_the_longest_plain_part_of_a_pattern(pattern, plain):
    assert longest_plain_part(pattern) == plain


def test_torch_s_own_error_needs_no_words():
    assert is_oom(torch.OutOfMemoryError("Allocation failed"))


def test_a_memory_error_is_the_host_s():
    assert classify(MemoryError()).certainty is Certainty.HOST
    assert classify(MemoryError("CUDA out of memory")).certainty is Certainty.SURE


def test_a_gpu_library_s_memory_error_is_the_device_s():
    kind = type("OutOfMemoryError", (MemoryError,), {"__module__": "cupy.cuda.memory"})
    failure = classify(kind("Out of memory allocating 512 bytes (allocated so far: 0 bytes)."))
    assert failure.is_oom
    assert failure.source == "cupy"


def test_a_system_error_without_memory_is_the_host_s():
    assert classify(OSError(12, "Cannot allocate memory")).certainty is Certainty.HOST


def test_words_of_a_mistake_in_the_program_do_not_count():
    assert classify(ValueError("on_oom must be 'CUDA out of memory' or None")).certainty is (
        Certainty.NOT_MEMORY
    )


def test_cuda_s_plain_words_from_a_pinning_call_are_about_pinned_memory():
    def pin_memory() -> None:
        raise RuntimeError("CUDA error: out of memory" + texts.TRAILER)

    with pytest.raises(RuntimeError) as caught:
        pin_memory()
    failure = classify(caught.value)
    assert failure.certainty is Certainty.PINNED
    assert failure.is_memory
    assert not failure.is_oom


# --- chains


def oom() -> torch.OutOfMemoryError:
    return torch.OutOfMemoryError(texts.CUDA_NOW)


def test_the_cause_is_looked_at():
    failure = classify(raised(ValueError("the step failed"), cause=oom()))
    assert failure.is_oom
    assert failure.link == "cause"
    assert failure.requested == 546 * MiB


def test_what_was_being_handled_is_looked_at():
    failure = classify(raised_while_handling(UnboundLocalError("output"), oom()))
    assert failure.is_oom
    assert failure.link == "context"


def test_a_suppressed_context_is_not():
    error = raised_while_handling(ValueError("other"), oom())
    error.__suppress_context__ = True
    assert not is_oom(error)


def test_a_cause_hides_the_context():
    error = raised_while_handling(ValueError("other"), oom())
    error.__cause__ = KeyError("why")
    assert not is_oom(error)


def test_a_sure_error_beneath_a_vague_one_is_the_one_told():
    error = raised(RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"), cause=oom())
    assert classify(error, free_memory=mostly_free).certainty is Certainty.SURE


def test_an_interruption_while_memory_was_short_is_an_interruption():
    for interruption in (KeyboardInterrupt(), SystemExit(1)):
        assert classify(raised_while_handling(interruption, oom())).certainty is Certainty.NOT_MEMORY


def test_a_chain_that_bites_its_tail_ends():
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert not is_oom(first)


def test_a_group_of_memory_errors_is_one():
    failure = classify(ExceptionGroup("workers", [oom(), ExceptionGroup("inner", [oom()])]))
    assert failure.is_oom
    assert failure.link == "group"


def test_a_group_that_holds_another_error_is_not():
    failure = classify(ExceptionGroup("workers", [oom(), KeyError("label")]))
    assert not failure.is_memory
    assert "Beside an error about memory" in failure.reason


def test_an_exception_that_cannot_say_its_text_is_not_about_memory():
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("out of memory")

    assert classify(MuteError()).certainty is Certainty.NOT_MEMORY


def test_the_answer_keeps_nothing_of_the_error_alive():
    def fail() -> None:
        activation = torch.empty(8)
        references.append(weakref.ref(activation))
        raise oom()

    references: list[weakref.ref[torch.Tensor]] = []
    failure = None
    try:
        fail()
    except torch.OutOfMemoryError as error:
        failure = classify(error)
    assert failure is not None
    assert references[0]() is None


def test_the_classifier_does_not_import_torch():
    program = "import sys, legroom.diagnose.oom.recognize as oom; oom.classify('CUDA out of memory.'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_run_that_died_of_an_error_that_memory_caused_died_of_memory(make_run):
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


def test_a_run_whose_source_merely_names_the_error_did_not(make_run):
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
