"""Errors are explained: the right kind, the right page, the figures used, the log's last error and its first cause."""

import gzip
import io
import json
from pathlib import Path

import pytest
import torch

from legroom.diagnose.codes import all_pages
from legroom.diagnose.explain.explain import explain, explain_file, page_parts
from legroom.diagnose.explain.log_reader import _Search, _ways, search_log
from legroom.diagnose.explain.rules import RULES
from legroom.errors import UsageError

ERRORS = Path(__file__).parents[2] / "data" / "errors"
TEXTS = [
    row for file in sorted(ERRORS.glob("*.json")) for row in json.loads(file.read_text(encoding="utf-8"))
]


def test_real_texts_are_told_apart_and_none_is_taken_for_out_of_memory_that_is_not() -> None:
    assert len(TEXTS) >= 60
    told = [(explain(row["text"]), row) for row in TEXTS]
    right = sum(each.kind == row["kind"] for each, row in told)
    assert right / len(TEXTS) >= 0.95, [row["text"] for each, row in told if each.kind != row["kind"]]
    assert not [row["text"] for each, row in told if each.kind == "oom" and row["kind"] != "oom"]


def test_every_rule_has_a_page_whose_causes_have_a_check_and_a_fix() -> None:
    for code in {rule.code for rule in RULES} | {f"LG70{number}" for number in range(7)}:
        _, causes = page_parts(code)
        assert causes, code
        assert all(cause.cause and cause.check and cause.fix for cause in causes), code


def test_plain_parts_are_plain() -> None:
    """What is looked for letter by letter must not have signs of a pattern in it."""
    for entry, plain, pattern in _ways():
        assert "\\" not in plain, (entry.code, pattern.pattern)
        assert not {"+", "{", "}"} & set(plain), (entry.code, pattern.pattern)


class TestFigures:
    def test_a_new_wording_names_other_processes_and_what_tensors_hold(self) -> None:
        told = explain(next(row["text"] for row in TEXTS if "allocate 546" in row["text"]))
        assert told.sentence == (
            "GPU 1 ran out of memory: 546.0 MiB were asked for and 514.2 MiB of 15.77 GiB were free."
        )
        assert told.causes[0].cause == "Other processes hold 2.00 GiB of this GPU."
        assert told.causes[1].cause == "Tensors alive hold 12.50 GiB of 15.77 GiB."
        assert told.figures["others"] == 2 << 30

    def test_causes_that_figures_decide_are_not_told_again(self) -> None:
        told = explain(next(row["text"] for row in TEXTS if "allocate 546" in row["text"]))
        assert [cause.cause for cause in told.causes[2:]] == ["Tensors are kept alive from step to step."]

    def test_much_reserved_and_little_allocated_is_fragmentation(self) -> None:
        told = explain(
            "CUDA out of memory. Tried to allocate 1.00 GiB (GPU 0; 15.78 GiB total capacity; 8.00 GiB already "
            "allocated; 200.00 MiB free; 14.50 GiB reserved in total by PyTorch)"
        )
        assert "fragmentation" in told.causes[0].cause
        assert "expandable_segments" in told.causes[0].check

    def test_more_than_the_whole_gpu_is_said_alone_first(self) -> None:
        told = explain(
            "CUDA out of memory. Tried to allocate 256.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 70.00 GiB is free."
        )
        assert [cause.cause for cause in told.causes] == [
            "One operation asks for more than the whole GPU: 256.00 GiB of 79.10 GiB (LG601)."
        ]


class TestSizes:
    @pytest.mark.parametrize(
        ("error", "sentence"),
        [
            (
                "RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x512 and 256x10)",
                "A linear layer or matrix product wants 256 features and got 512.",
            ),
            (
                "RuntimeError: Given groups=1, weight of size [8, 3, 3, 3], expected input[1, 4, 32, 32] to have 3 channels, but got 4 channels instead",
                "A convolution wants 3 channels and got 4: the input is [1, 4, 32, 32].",
            ),
            (
                "RuntimeError: The size of tensor a (10) must match the size of tensor b (8) at non-singleton dimension 1",
                "Two tensors do not fit together: dimension 1 is 10 in one and 8 in the other.",
            ),
        ],
    )
    def test_the_first_sentence_has_the_sizes_of_the_error(self, error: str, sentence: str) -> None:
        assert explain(error).sentence == sentence


class TestExceptions:
    def test_an_error_of_torch_is_told_by_its_class(self) -> None:
        told = explain(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
        assert (told.kind, told.code, told.figures["requested"]) == ("oom", "LG700", 2 << 30)

    def test_a_real_shape_mismatch(self) -> None:
        try:
            torch.nn.Linear(4, 2)(torch.ones(3, 5))
        except RuntimeError as error:
            told = explain(error)
        assert (told.kind, told.code, told.certainty) == ("not-memory", "LG714", "sure")

    def test_a_mistake_of_the_program_is_not_memory_whatever_it_says(self) -> None:
        told = explain(ValueError("CUDA out of memory is spelled wrongly"))
        assert (told.kind, told.code) == ("not-memory", "")

    def test_the_cause_of_a_wrapper_is_found(self) -> None:
        try:
            try:
                torch.nn.Embedding(2, 2)(torch.tensor([5]))
            except IndexError as error:
                raise RuntimeError("training failed") from error
        except RuntimeError as error:
            told = explain(error)
        assert told.code == "LG712"

    def test_nothing_but_errors_and_texts_is_taken(self) -> None:
        with pytest.raises(UsageError, match="give an exception or a text to explain, not a int"):
            explain(3)  # type: ignore[arg-type]


class TestLogs:
    def test_the_last_error_counts_and_the_first_of_another_kind_is_mentioned(self, tmp_path: Path) -> None:
        log = tmp_path / "train.log"
        log.write_text(
            "step 1\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
            + "step\n" * 100
            + "RuntimeError: CUDA error: device-side assert triggered\n"
        )
        told = explain_file(str(log))
        assert (told.code, told.line) == ("LG710", 103)
        assert told.earlier is not None
        assert (told.earlier.code, told.earlier.line) == ("LG700", 2)

    def test_lines_that_json_holds_in_one_are_counted_as_the_file_has_them(self, tmp_path: Path) -> None:
        log = tmp_path / "train.jsonl"
        error = "Traceback (most recent call last):\n  File \"train.py\", line 3\nKeyError: 'labels'"
        rows = [{"msg": "epoch 1"}, {"level": "error", "msg": error}, {"msg": "bye"}]
        log.write_text("".join(json.dumps(row) + "\n" for row in rows))
        told = explain_file(str(log))
        assert (told.kind, told.line) == ("not-memory", 2)
        assert told.message.startswith("KeyError: 'labels'")

    def test_a_notebook_is_read_by_what_its_cells_put_out(self, tmp_path: Path) -> None:
        file = tmp_path / "train.ipynb"
        raised = {"output_type": "error", "ename": "OutOfMemoryError", "evalue": "", "traceback": []}
        raised["evalue"] = "CUDA out of memory. Tried to allocate 2.00 GiB"
        cells = [
            {"cell_type": "markdown", "source": ["KeyError: 1"]},
            {"cell_type": "code", "outputs": [raised]},
        ]
        file.write_text(json.dumps({"cells": cells}))
        told = explain_file(str(file))
        assert (told.code, told.figures["requested"], told.line) == ("LG700", 2 << 30, None)

    def test_an_error_is_told_rather_than_the_launcher_that_counts_its_dead(self) -> None:
        told = explain(
            "Traceback (most recent call last):\n  File \"train.py\", line 3\nKeyError: 'labels'\n"
            "[INFO] [launch.py:319:sigkill_handler] Killing subprocess 4012\n"
            "[ERROR] [launch.py:325:sigkill_handler] ['python', 'train.py'] exits with return code = 1\n"
        )
        assert told.message == "KeyError: 'labels'"

    def test_a_log_that_ends_inside_a_traceback_says_so(self) -> None:
        told = explain(
            'step 1\nstep 2\nTraceback (most recent call last):\n  File "train.py", line 3, in main\n    loss.ba'
        )
        assert told.kind == "unknown"
        assert told.sentence.startswith(
            "It ends inside a traceback, before the line that says what went wrong"
        )

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
    def test_words_that_are_broken_where_a_window_ended_are_read(self, text: str, code: str) -> None:
        assert explain(text).code == code

    def test_an_allocation_that_failed_inside_nccl_is_told_rather_than_that_nccl_failed(self) -> None:
        told = explain(
            "node:1:2 [0] include/alloc.h:185 NCCL WARN Cuda failure 'out of memory'\n"
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1275, internal error\n"
            "ncclInternalError: Internal check failed.\n"
        )
        assert told.code == "LG700"

    def test_half_a_notebook_is_read_as_it_stands(self) -> None:
        told = explain(
            '{"cells": [{"outputs": [{"text": ["RuntimeError: CUDA error: device-side assert triggered'
        )
        assert told.code == "LG710"

    def test_an_unknown_last_error_is_not_explained_by_an_earlier_one(self) -> None:
        told = explain(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\nretrying with half the batch\n"
            'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nmylib.StrangeError: who knows\n'
        )
        assert (told.kind, told.message) == ("unknown", "mylib.StrangeError: who knows")
        assert told.earlier is not None
        assert told.earlier.code == "LG700"

    def test_an_error_that_wraps_a_known_one_is_the_known_one(self) -> None:
        told = explain(
            'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n'
            "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n\n"
            "The above exception was the direct cause of the following exception:\n\n"
            'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\nmylib.TrialFailed: trial 3\n'
        )
        assert told.kind == "oom"

    def test_an_error_across_the_border_of_two_pieces_is_found_once_at_its_line(self) -> None:
        text = (
            "step\n" * 3000
            + "RuntimeError: CUDA error: an illegal memory access was encountered\n"
            + "step\n" * 10
        )
        for cut in (15_010, 15_030, 15_060):
            found = search_log([text[:cut], text[cut:]])
            assert found.error is not None
            assert (found.error.code, found.error.line) == ("LG711", 3001)

    def test_a_long_log_is_never_held_whole(self) -> None:
        search = _Search()
        for number in range(10):
            search.feed(f"step {number} " * 20_000)
            assert len(search._carried) < 1 << 17

    @pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
    def test_other_encodings_and_line_ends(self, tmp_path: Path, encoding: str) -> None:
        log = tmp_path / "log"
        log.write_bytes("ok\r\nRuntimeError: CUDA error: out of memory\r\n".encode(encoding))
        assert explain_file(str(log)).kind == "oom"

    def test_packed_logs_are_read(self, tmp_path: Path) -> None:
        log = tmp_path / "log.gz"
        log.write_bytes(gzip.compress(b"IndexError: Target 10 is out of bounds.\n"))
        assert explain_file(str(log)).code == "LG712"

    def test_standard_input(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            "sys.stdin",
            io.TextIOWrapper(io.BytesIO(b"x\nDataLoader worker (pid 3) is killed by signal: Killed.")),
        )
        assert explain_file("-").code == "LG705"

    def test_a_text_without_an_error_is_a_sentence(self) -> None:
        told = explain("all is well\n")
        assert (told.kind, told.sentence) == (
            "unknown",
            "No error was found in it: give the whole output of the program, with its last traceback.",
        )

    @pytest.mark.parametrize(
        ("content", "sentence"),
        [
            (b"\x7fELF\0\0\0\1", "is a binary file: give the text"),
            (None, "does not exist: name a log, a code"),
        ],
    )
    def test_what_cannot_be_read_is_refused_with_the_remedy(
        self, tmp_path: Path, content: bytes | None, sentence: str
    ) -> None:
        file = tmp_path / "some"
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(UsageError, match=sentence):
            explain_file(str(file))

    def test_the_error_itself_may_be_given_instead_of_a_file(self) -> None:
        assert explain_file("CUDA error: device-side assert triggered").code == "LG710"
        assert explain_file("RuntimeError: CUDA out of memory. " + "x" * 5000).code == "LG700"

    def test_a_folder_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="is a folder: name the log in it"):
            explain_file(str(tmp_path))


def test_pages_of_explained_errors_are_of_their_kind() -> None:
    assert all_pages()["LG710"].kind == "errors explained"


@pytest.mark.parametrize(
    ("text", "kind", "code"),
    [
        (
            "F fft.cc:88] Check failed: (cufftPlanMany(&plan, 1, &n)) == CUFFT_SUCCESS (2 vs. 0)\nAborted (core dumped)",
            "oom",
            "LG700",
        ),
        ("F blas.cc:9] Check failed: status == CUBLAS_STATUS_SUCCESS (13 vs. 0)", "not-memory", "LG721"),
        (
            "RuntimeError: cuDNN Frontend error: [cudnn_frontend] Error: No execution plans support the graph.",
            "not-memory",
            "LG720",
        ),
    ],
)
def test_a_number_in_a_check_and_a_graph_of_a_library_are_told_for_what_they_are(
    text: str, kind: str, code: str
) -> None:
    told = explain(text)
    assert (told.kind, told.code) == (kind, code)


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
def test_the_cause_that_the_words_name_stands_first(text: str, cause: str) -> None:
    assert cause in explain(text).causes[0].cause
