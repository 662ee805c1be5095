"""Explanations: the kind of an error, its page, sizes in the message, and the relevant error in a log."""

import gzip
import io
import json
from pathlib import Path

import pytest
import torch

from legroom.diagnose.codes import all_pages
from legroom.diagnose.explain.explain import explain, explain_file, page_parts
from legroom.diagnose.explain.log_reader import _Search, _variants, search_log
from legroom.diagnose.explain.rules import RULES
from legroom.errors import UsageError

ERRORS = Path(__file__).parents[3] / "data" / "errors"
TEXTS = [
    entry for file in sorted(ERRORS.glob("*.json")) for entry in json.loads(file.read_text(encoding="utf-8"))
]


@pytest.mark.slow
def test_collected_errors_are_classified_without_false_oom() -> None:
    assert len(TEXTS) >= 60
    results = [(explain(entry["text"]), entry) for entry in TEXTS]
    right = sum(each.kind == entry["kind"] for each, entry in results)
    assert right / len(TEXTS) >= 0.95, [
        entry["text"] for each, entry in results if each.kind != entry["kind"]
    ]
    assert not [entry["text"] for each, entry in results if each.kind == "oom" and entry["kind"] != "oom"]


@pytest.mark.parametrize(
    "name",
    [
        "development_02_host_device",  # schedulers, containers, page-locked and shared memory, and other messages that mention memory
        pytest.param("development_03_families", marks=pytest.mark.slow),  # all areas, by families of messages
        pytest.param("development_04_long_logs", marks=pytest.mark.slow),  # several errors in one log
        pytest.param(
            "development_05_unusual_forms", marks=pytest.mark.slow
        ),  # rare libraries, launchers and wordings
        pytest.param("heldout_16", marks=pytest.mark.slow),
        pytest.param("heldout_17", marks=pytest.mark.slow),
        pytest.param("heldout_18", marks=pytest.mark.slow),
        pytest.param("heldout_19", marks=pytest.mark.slow),
        pytest.param("heldout_20", marks=pytest.mark.slow),
        pytest.param("heldout_21", marks=pytest.mark.slow),
        pytest.param("heldout_22", marks=pytest.mark.slow),
        pytest.param("heldout_23", marks=pytest.mark.slow),
        pytest.param("heldout_15", marks=pytest.mark.slow),
    ],
)
def test_every_text_of_a_table_has_its_kind_and_page(name: str) -> None:
    table = json.loads((ERRORS / f"{name}.json").read_text(encoding="utf-8"))
    wrong = [
        (entry["kind"], entry["code"], found.kind, found.code, entry["text"])
        for entry in table
        if ((found := explain(entry["text"])).kind, found.code) != (entry["kind"], entry["code"])
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Loading checkpoint shards:   0%|     | 0/8 [00:00<?, ?it/s]已杀死", "LG705"),
        ("epoch 1\n죽었음\n", "LG705"),
        ("epoch 1\nTerminado (killed)\n", "LG705"),
        ("ImportError: DLL load failed: 页面文件太小，无法完成操作。", "LG702"),
        (
            "OSError: [WinError 1455] 이 작업을 완료하기 위한 페이징 파일이 너무 작습니다. Error loading caffe2.dll",
            "LG702",
        ),
        ("fork: retry: メモリを確保できません", "LG702"),
        ("OSError: [Errno 28] 장치에 남은 공간이 없음: 'model.pt'", "LG780"),
        ("Speicherzugriffsfehler (Speicherabzug geschrieben)", "LG729"),
    ],
)
def test_system_message_in_another_language(text: str, code: str) -> None:
    assert explain(text).code == code


def test_word_of_another_language_inside_a_sentence_is_no_message() -> None:
    assert explain("class Morto: 0.91, class Ucciso: 0.88\nTué par accident: 12 %\n").kind == "unknown"


def test_remark_about_another_run_is_not_the_error() -> None:
    error = "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
    remark = "batch 800: ok, batch 2048: CUDA out of memory."
    assert explain(f"{error}\n{remark}\n").certainty == "unsure"
    assert explain(remark).kind == "oom"


def test_output_that_ends_while_a_checkpoint_is_loaded() -> None:
    bar = "Loading checkpoint shards:   0%|          | {}/3 [00:00<?, ?it/s]"
    prompt = "\nPS C:\\work> "
    assert explain(bar.format(0) + prompt).kind == "host-oom"
    assert explain(bar.format(0) + prompt).certainty == "unsure"
    assert explain(bar.format(3) + prompt).kind == "unknown"
    assert explain(bar.format(0) + "\nepoch 1: loss 0.5\n").kind == "unknown"


def test_first_small_allocation_that_fails_is_an_unusable_gpu() -> None:
    message = (
        "MPS backend out of memory (MPS allocated: {}, other allocations: {}, max allowed: 7.93 GB). "
        "Tried to allocate 256 bytes on shared pool."
    )
    unusable = RuntimeError(message.format("0 bytes", "0 bytes"))
    assert explain(unusable).code == explain(f"RuntimeError: {unusable}").code == "LG724"
    assert explain(f"RuntimeError: {message.format('7.90 GB', '0 bytes')}").code == "LG700"


def test_failed_allocation_of_a_library_is_not_certain() -> None:
    handle = explain(
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
    )
    assert (handle.kind, handle.certainty) == ("disguised-oom", "unsure")
    assert any("index out of range" in cause.cause for cause in handle.causes)
    workspace = explain("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED")
    assert (workspace.kind, workspace.certainty) == ("disguised-oom", "likely")


def test_every_page_of_a_rule_lists_causes_with_check_and_fix() -> None:
    for code in {rule.code for rule in RULES} | {f"LG70{number}" for number in range(8)}:
        _, causes = page_parts(code)
        assert causes, code
        assert all(cause.cause and cause.check and cause.fix for cause in causes), code


def test_literals_contain_no_regex_syntax() -> None:
    for variant, literal, pattern in _variants():
        assert "\\" not in literal, (variant.code, pattern.pattern)
        assert not {"+", "{", "}"} & set(literal), (variant.code, pattern.pattern)


class TestSizes:
    def test_sizes_show_other_processes_and_live_tensors(self) -> None:
        explanation = explain(next(entry["text"] for entry in TEXTS if "allocate 546" in entry["text"]))
        assert explanation.sentence == (
            "GPU 1 ran out of memory. Tried to allocate 546.0 MiB; 514.2 MiB of 15.77 GiB free."
        )
        assert explanation.causes[0].cause == "Other processes use 2.00 GiB of memory on this GPU."
        assert explanation.causes[1].cause == "Live tensors use 12.50 GiB of 15.77 GiB."
        assert explanation.figures["others"] == 2 << 30

    def test_causes_decided_by_sizes_are_not_repeated(self) -> None:
        explanation = explain(next(entry["text"] for entry in TEXTS if "allocate 546" in entry["text"]))
        assert [cause.cause for cause in explanation.causes[2:]] == [
            "Tensors are kept alive from step to step."
        ]

    def test_large_reserved_and_small_allocated_memory_is_fragmentation(self) -> None:
        explanation = explain(
            "CUDA out of memory. Tried to allocate 1.00 GiB (GPU 0; 15.78 GiB total capacity; 8.00 GiB already "
            "allocated; 200.00 MiB free; 14.50 GiB reserved in total by PyTorch)"
        )
        assert "(fragmentation)" in explanation.causes[0].cause
        assert "expandable_segments" in explanation.causes[0].check

    def test_request_larger_than_the_gpu_is_the_only_cause(self) -> None:
        explanation = explain(
            "CUDA out of memory. Tried to allocate 256.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 70.00 GiB is free."
        )
        assert [cause.cause for cause in explanation.causes] == [
            "One operation requires 256.00 GiB, but the whole GPU has only 79.10 GiB (LG601)."
        ]


class TestShapes:
    @pytest.mark.parametrize(
        ("error", "sentence"),
        [
            (
                "IndexError: invalid index of a 0-dim tensor. Use `tensor.item()` in Python or `tensor.item<T>()` in C++",
                "The code indexes a tensor without dimensions, such as a loss. Use `.item()` to get its value.",
            ),
            (
                "RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x512 and 256x10)",
                "A linear layer or matrix product expects a last dimension of 256 but got 512.",
            ),
            (
                "RuntimeError: Given groups=1, weight of size [8, 3, 3, 3], expected input[1, 4, 32, 32] to have 3 channels, but got 4 channels instead",
                "A convolution received the wrong number of input channels: expected 3, got 4. The input shape is [1, 4, 32, 32].",
            ),
            (
                "RuntimeError: The size of tensor a (10) must match the size of tensor b (8) at non-singleton dimension 1",
                "The shapes of two tensors do not match: dimension 1 has size 10 in one tensor and size 8 in the other tensor.",
            ),
        ],
    )
    def test_summary_contains_the_shapes_of_the_error(self, error: str, sentence: str) -> None:
        assert explain(error).sentence == sentence


class TestExceptions:
    def test_torch_out_of_memory_error_is_recognized_by_class(self) -> None:
        explanation = explain(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
        assert (explanation.kind, explanation.code, explanation.figures["requested"]) == (
            "oom",
            "LG700",
            2 << 30,
        )

    def test_shape_mismatch_raised_by_torch_is_explained(self) -> None:
        try:
            torch.nn.Linear(4, 2)(torch.ones(3, 5))
        except RuntimeError as error:
            explanation = explain(error)
        assert (explanation.kind, explanation.code, explanation.certainty) == ("not-memory", "LG714", "sure")

    def test_value_error_is_never_an_out_of_memory_error(self) -> None:
        explanation = explain(ValueError("CUDA out of memory is spelled wrongly"))
        assert (explanation.kind, explanation.code) == ("not-memory", "")

    def test_cause_of_a_wrapping_exception_is_found(self) -> None:
        try:
            try:
                torch.nn.Embedding(2, 2)(torch.tensor([5]))
            except IndexError as error:
                raise RuntimeError("training failed") from error
        except RuntimeError as error:
            explanation = explain(error)
        assert explanation.code == "LG712"

    def test_other_types_are_rejected(self) -> None:
        with pytest.raises(UsageError, match="expects an exception or a string, not int"):
            explain(3)  # type: ignore[arg-type]


class TestLogs:
    def test_last_error_is_explained_and_an_earlier_one_is_mentioned(self, tmp_path: Path) -> None:
        log = tmp_path / "train.log"
        log.write_text(
            "step 1\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
            + "step\n" * 100
            + "RuntimeError: CUDA error: device-side assert triggered\n"
        )
        explanation = explain_file(str(log))
        assert (explanation.code, explanation.line) == ("LG710", 103)
        assert explanation.earlier is not None
        assert (explanation.earlier.code, explanation.earlier.line) == ("LG700", 2)

    def test_line_numbers_of_json_logs_refer_to_the_file(self, tmp_path: Path) -> None:
        log = tmp_path / "train.jsonl"
        error = "Traceback (most recent call last):\n  File \"train.py\", line 3\nKeyError: 'labels'"
        entries = [{"msg": "epoch 1"}, {"level": "error", "msg": error}, {"msg": "bye"}]
        log.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
        explanation = explain_file(str(log))
        assert (explanation.kind, explanation.line) == ("not-memory", 2)
        assert explanation.message.startswith("KeyError: 'labels'")

    def test_notebook_is_read_by_its_cell_outputs(self, tmp_path: Path) -> None:
        file = tmp_path / "train.ipynb"
        raised = {"output_type": "error", "ename": "OutOfMemoryError", "evalue": "", "traceback": []}
        raised["evalue"] = "CUDA out of memory. Tried to allocate 2.00 GiB"
        cells = [
            {"cell_type": "markdown", "source": ["KeyError: 1"]},
            {"cell_type": "code", "outputs": [raised]},
        ]
        file.write_text(json.dumps({"cells": cells}))
        explanation = explain_file(str(file))
        assert (explanation.code, explanation.figures["requested"], explanation.line) == (
            "LG700",
            2 << 30,
            None,
        )

    def test_traceback_takes_precedence_over_launcher_exit_messages(self) -> None:
        explanation = explain(
            "Traceback (most recent call last):\n  File \"train.py\", line 3\nKeyError: 'labels'\n"
            "[INFO] [launch.py:319:sigkill_handler] Killing subprocess 4012\n"
            "[ERROR] [launch.py:325:sigkill_handler] ['python', 'train.py'] exits with return code = 1\n"
        )
        assert explanation.message == "KeyError: 'labels'"

    def test_log_that_ends_inside_a_traceback_is_explained(self) -> None:
        explanation = explain(
            'step 1\nstep 2\nTraceback (most recent call last):\n  File "train.py", line 3, in main\n    loss.ba'
        )
        assert explanation.kind == "unknown"
        assert explanation.sentence.startswith("The input ends inside a traceback, before the error message")

    @pytest.mark.parametrize(
        ("text", "code"),
        [
            ("RuntimeError: mat1 and mat2 shapes cannot be\nmultiplied (64x512 and 256x10)", "LG714"),
            (
                "RuntimeError: Expected all tensors to be on\n  the same device, but found at least two",
                "LG713",
            ),
        ],
    )
    def test_message_wrapped_by_a_terminal_is_recognized(self, text: str, code: str) -> None:
        assert explain(text).code == code

    def test_allocation_failure_inside_nccl_is_out_of_memory(self) -> None:
        explanation = explain(
            "node:1:2 [0] include/alloc.h:185 NCCL WARN Cuda failure 'out of memory'\n"
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1275, internal error\n"
            "ncclInternalError: Internal check failed.\n"
        )
        assert explanation.code == "LG700"

    def test_truncated_notebook_is_read_as_text(self) -> None:
        explanation = explain(
            '{"cells": [{"outputs": [{"text": ["RuntimeError: CUDA error: device-side assert triggered'
        )
        assert explanation.code == "LG710"

    def test_unknown_last_error_is_not_explained_by_an_earlier_one(self) -> None:
        explanation = explain(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\nretrying with half the batch\n"
            'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nmylib.StrangeError: who knows\n'
        )
        assert (explanation.kind, explanation.message) == ("unknown", "mylib.StrangeError: who knows")
        assert explanation.earlier is not None
        assert explanation.earlier.code == "LG700"

    def test_error_that_wraps_a_known_one_is_explained_by_it(self) -> None:
        explanation = explain(
            'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n'
            "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n\n"
            "The above exception was the direct cause of the following exception:\n\n"
            'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\nmylib.TrialFailed: trial 3\n'
        )
        assert explanation.kind == "oom"

    def test_error_that_spans_two_chunks_is_found_at_its_line(self) -> None:
        text = (
            "step\n" * 3000
            + "RuntimeError: CUDA error: an illegal memory access was encountered\n"
            + "step\n" * 10
        )
        for cut in (15_010, 15_030, 15_060):
            found = search_log([text[:cut], text[cut:]])
            assert found.error is not None
            assert (found.error.code, found.error.line) == ("LG711", 3001)

    @pytest.mark.slow
    def test_long_log_is_not_kept_in_memory(self) -> None:
        search = _Search()
        for number in range(10):
            search.feed(f"step {number} " * 20_000)
            assert len(search._carried) < 1 << 17

    @pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
    def test_other_encodings_and_line_endings_are_read(self, tmp_path: Path, encoding: str) -> None:
        log = tmp_path / "log"
        log.write_bytes("ok\r\nRuntimeError: CUDA error: out of memory\r\n".encode(encoding))
        assert explain_file(str(log)).kind == "oom"

    def test_gzipped_log_is_read(self, tmp_path: Path) -> None:
        log = tmp_path / "log.gz"
        log.write_bytes(gzip.compress(b"IndexError: Target 10 is out of bounds.\n"))
        assert explain_file(str(log)).code == "LG712"

    def test_standard_input_is_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            "sys.stdin",
            io.TextIOWrapper(io.BytesIO(b"x\nDataLoader worker (pid 3) is killed by signal: Killed.")),
        )
        assert explain_file("-").code == "LG705"

    def test_text_without_an_error_is_reported_as_unknown(self) -> None:
        explanation = explain("all is well\n")
        assert (explanation.kind, explanation.sentence) == (
            "unknown",
            "No error found. Provide the complete output of the program, including the last traceback.",
        )

    @pytest.mark.parametrize(
        ("content", "sentence"),
        [
            (b"\x7fELF\0\0\0\1", "is a binary file. Pass a text file"),
            (None, "does not exist. Pass the path to a log, a code"),
        ],
    )
    def test_unreadable_file_is_rejected_with_advice(
        self, tmp_path: Path, content: bytes | None, sentence: str
    ) -> None:
        file = tmp_path / "some"
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(UsageError, match=sentence):
            explain_file(str(file))

    def test_error_text_can_be_given_instead_of_a_file(self) -> None:
        assert explain_file("CUDA error: device-side assert triggered").code == "LG710"
        assert explain_file("RuntimeError: CUDA out of memory. " + "x" * 5000).code == "LG700"

    def test_directory_is_rejected(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="is a directory. Pass the path to a log file"):
            explain_file(str(tmp_path))


def test_page_of_an_explained_error_has_its_kind() -> None:
    assert all_pages()["LG710"].kind == "errors explained"


@pytest.mark.parametrize(
    ("text", "kind", "code"),
    [
        (
            "F fft.cc:88] Check failed: (cufftPlanMany(&plan, 1, &n)) == CUFFT_SUCCESS (2 vs. 0)\nAborted (core dumped)",
            "disguised-oom",
            "LG701",
        ),
        ("F blas.cc:9] Check failed: status == CUBLAS_STATUS_SUCCESS (13 vs. 0)", "not-memory", "LG721"),
        (
            "RuntimeError: cuDNN Frontend error: [cudnn_frontend] Error: No execution plans support the graph.",
            "not-memory",
            "LG720",
        ),
    ],
)
def test_status_numbers_and_cudnn_graph_errors_are_recognized(text: str, kind: str, code: str) -> None:
    explanation = explain(text)
    assert (explanation.kind, explanation.code) == (kind, code)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace operation",
            "changed in place",
        ),
        ("RuntimeError: Trying to backward through the graph a second time", "a second time"),
        (
            "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn",
            "loss has no graph",
        ),
        ("IndexError: index out of range in self", "embedding"),
        ("IndexError: Target 7 is out of bounds.", "class label"),
        (
            "ValueError: Expected more than 1 value per channel when training, got input size torch.Size([1, 8])",
            "last batch",
        ),
    ],
)
def test_cause_named_by_the_message_comes_first(text: str, cause: str) -> None:
    assert cause in explain(text).causes[0].cause


@pytest.mark.parametrize(
    ("text", "kind", "code"),
    [
        (
            "RuntimeError: nonzero is not supported for tensors with more than INT_MAX elements",
            "not-memory",
            "LG719",
        ),
        (
            "CUDA out of memory. Tried to allocate 784.00 MiB (handled)\nepoch 0 done\nTraceback (most recent call last):\n"
            '  File "main.py", line 7, in <module>\n    fit()\nlib.errors.TrainingError: no metric `val_acc`',
            "unknown",
            "",
        ),
        (
            'Traceback (most recent call last):\n  File "/home/me/replay.py", line 34, in sample\n'
            '    raise MemoryError(f"not enough memory: {len(self)} stored")\nMemoryError: not enough memory: 96 stored',
            "not-memory",
            "",
        ),
        (
            'Traceback (most recent call last):\n  File "/home/me/load.py", line 3, in <module>\n    rows = list(source)\nMemoryError',
            "host-oom",
            "LG702",
        ),
        (
            "RuntimeError: DataLoader worker (pid 11) is killed by signal: Killed. \n\nTraceback (most recent call last):\n"
            '  File "train.py", line 15, in <module>\n    for batch in loader:\n'
            "RuntimeError: DataLoader worker (pid(s) 11) exited unexpectedly",
            "host-oom",
            "LG705",
        ),
        (
            '[rank2]: Traceback (most recent call last):\n[rank2]:   File "train.py", line 2, in <module>\n'
            "[rank2]:     batch['caption']\n[rank2]: KeyError: 'caption'\n"
            "[rank0]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3353, remote process exited or there "
            "was a network error, NCCL version 2.26.2\n  traceback : Signal 6 (SIGABRT) received by PID 9910\n"
            "  exitcode  : 1 (pid: 9912)",
            "not-memory",
            "",
        ),
        (
            "node1:412:599 [2] include/shm.h:48 NCCL WARN Error while creating shared memory segment nccl-shm-recv-9d (size 9637888)\n"
            "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:825, unhandled system error, NCCL version 2.7.8",
            "host-oom",
            "LG703",
        ),
        (
            "gpu3:2044:2160 [0] NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory\n"
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1275, unhandled system error",
            "host-oom",
            "LG704",
        ),
        (
            "[40.1] NVRM: Xid (PCI:0000:41:00): 79, pid=1, GPU has fallen off the bus.\n"
            "RuntimeError: CUDA error: unspecified launch failure",
            "not-memory",
            "LG725",
        ),
        (
            "[9/49] nvcc -c flash_bwd.cu\nKilled\nninja: build stopped: subcommand failed.\nERROR: Failed building wheel for x",
            "host-oom",
            "LG705",
        ),
        (
            "[9/49] nvcc -c flash_bwd.cu\nflash_bwd.cu(3): error: expected a ;\nninja: build stopped: subcommand failed.",
            "not-memory",
            "LG751",
        ),
    ],
)
def test_the_error_that_ended_the_program_is_explained(text: str, kind: str, code: str) -> None:
    found = explain(text)
    assert (found.kind, found.code) == (kind, code), found


def test_the_assertion_of_the_kernel_names_the_most_likely_cause() -> None:
    log = (
        "Indexing.cu:1284: indexSelectLargeIndex: block: [127,0,0], thread: [96,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"
        'Traceback (most recent call last):\n  File "run.py", line 2, in <module>\n    model(batch)\n'
        "RuntimeError: CUDA error: device-side assert triggered\n"
    )
    assert "embedding" in explain(log).causes[0].cause
    assert (
        "label"
        in explain(log.replace("srcIndex < srcSelectDimSize", "t >= 0 && t < n_classes")).causes[0].cause
    )
