"""The extension in a real kernel: first the example notebook, then checks in additional cells."""

import re
from pathlib import Path
from typing import Any

import pytest

from legroom.diagnose.report.run_report import report_from_capture
from legroom.memory.capture.reader import read_capture
from legroom.memory.events import Alloc
from legroom.show.report.block_report import block_text

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")
pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[3] / "examples" / "notebook.ipynb"
CHECKS = {
    "setup": 'legroom.use("128MiB")\nMiB = 1024**2\nsmall = nn.Linear(64, 64).cuda()',
    "explain": "text = str(legroom.explain('CUDA out of memory. Tried to allocate 2.00 GiB <b>\\x1b[31m'))\n"
    "print(text.splitlines()[0])",
    "explain shown": "legroom.explain('CUDA out of memory. Tried to allocate 2.00 GiB <b>\\x1b[31m')",
    "summary text": "print(str(legroom.summary(small, torch.randn(8, 64))).splitlines()[0])",
    "summary shown": "legroom.summary(small, torch.randn(8, 64))",
    "plan": "estimate = legroom.estimate(small, torch.randn(8, 64), search=False)\n"
    "print(str(estimate).splitlines()[0])\nprint([each.name for each in legroom.plan(small, torch.randn(8, 64))])",
    "record": "with legroom.record() as block:\n    kept = torch.empty(8 * MiB, dtype=torch.uint8, device='cuda')\nprint(block.device, block.by_line()[0]['file'], "
    "block.by_line()[0]['line'])",
    "value": "%%legroom cell_recording\n40 + 2",
    "hostile": "%%legroom\nkept = torch.empty(8 * MiB, dtype=torch.uint8, device='cuda')  # <script>alert(1)</script>",
    "out": "torch.empty(40 * MiB, dtype=torch.uint8, device='cuda')",
    "plain failure": "def fill():\n    local = []\n    while True:\n        local.append(torch.empty(16 * MiB, dtype=torch.uint8, device='cuda'))\nfill()",
    "after plain failure": "print(torch.cuda.memory_allocated() // MiB, 'device' in str(Out), len(torch.empty(100 * MiB, dtype=torch.uint8, device='cuda')) // MiB)",
    "variable": "many = []\nwhile True:\n    many.append(torch.empty(16 * MiB, dtype=torch.uint8, device='cuda'))",
    "free": "%legroom free many",
    "other error": "%%legroom\n1 / 0",
    "usage": "%legroom nothing",
    "bad name": "%%legroom two names\n1",
    "use off": "%legroom use off",
    "saved": "path = cell_recording.save(folder + '/cell.legroom')",
    "unload": "%unload_ext legroom",
    "unloaded": "%%legroom\n1",
}


class Outputs:
    """The outputs of one cell."""

    def __init__(self, cell: Any) -> None:
        self.number: int = cell.execution_count
        self.all: list[Any] = cell.outputs
        self.shown = [
            output.data for output in cell.outputs if output.output_type in ("display_data", "execute_result")
        ]
        self.printed = "".join(
            output.text
            for output in cell.outputs
            if output.output_type == "stream" and output.name == "stdout"
        )
        self.stderr = "".join(
            output.text
            for output in cell.outputs
            if output.output_type == "stream" and output.name == "stderr"
        )
        self.errors = [output for output in cell.outputs if output.output_type == "error"]

    @property
    def traceback(self) -> str:
        (error,) = self.errors
        return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback))


class Executed:
    """The executed notebook."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        example = nbformat.read(EXAMPLE, as_version=4)
        self.example_cells = [cell for cell in example.cells if cell.cell_type == "code"]
        first = f"folder = {str(folder)!r}"
        example.cells.append(nbformat.v4.new_code_cell(first))
        self.checks = {
            name: nbformat.v4.new_code_cell(source, metadata={"tags": ["raises-exception"]})
            for name, source in CHECKS.items()
        }
        example.cells += self.checks.values()
        nbclient.NotebookClient(example, timeout=250, resources={"metadata": {"path": str(folder)}}).execute()

    def example(self, number: int) -> Outputs:
        """Return the outputs of cell `number` of the example, counted from 1."""
        return Outputs(self.example_cells[number - 1])

    def __getitem__(self, name: str) -> Outputs:
        return Outputs(self.checks[name])


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Executed:
    return Executed(tmp_path_factory.mktemp("notebook"))


def test_the_example_shows_a_summary_and_an_estimate_once(notebook: Executed) -> None:
    for number, start in ((2, "layer "), (3, "<Estimate: fits")):
        (data,) = notebook.example(number).shown
        assert data["text/plain"].startswith(start)
        assert "<table" in data["text/html"]
        assert notebook.example(number).stderr == ""


def test_a_recorded_cell_shows_a_picture_and_text(notebook: Executed) -> None:
    (data,) = notebook.example(4).shown
    assert data["text/plain"].startswith("Finished after 3 steps")
    assert "cell [4], line 5" in data["text/plain"]
    assert data["text/html"].count("<svg") == 2
    assert "<script" not in data["text/html"]
    assert "cell [4], line 5" in data["text/html"]


def test_the_variable_of_the_magic_is_the_recording(notebook: Executed) -> None:
    (data,) = notebook.example(5).shown
    assert "'file': 'cell [4]'" in data["text/plain"]
    assert "ipykernel" not in data["text/plain"]


def test_an_out_of_memory_error_names_the_cell_the_line_and_the_holder(notebook: Executed) -> None:
    failed = notebook.example(6)
    report, release = failed.shown
    first = " ".join(report["text/plain"].split("\n\n")[0].split())
    assert first.startswith("Out of memory in the evaluation, at cell [6], line 5.")
    assert "outputs (list" in report["text/plain"]
    assert "get_ipython" not in report["text/plain"]
    assert "outputs.append(model(batch))" in report["text/html"]
    assert release["text/plain"].startswith("Released ")
    assert "Released 0 B" not in release["text/plain"]
    assert not any("ipykernel_" in str(output) for output in failed.all)


def test_the_traceback_has_only_frames_of_the_user(notebook: Executed) -> None:
    traceback = notebook.example(6).traceback
    assert "Cell In[6], line 5, in predict(count)" in traceback
    assert "legroom/" not in traceback
    assert "torch/nn" not in traceback
    assert "OutOfMemoryError: CUDA out of memory." in traceback


def test_the_next_cell_runs_and_the_progress_is_one_output(notebook: Executed) -> None:
    after = notebook.example(7)
    assert not after.errors
    progress, value = after.shown
    assert value["text/plain"] == "20"
    assert progress["text/plain"].startswith("20/20")
    assert "<progress" in progress["text/html"]
    assert after.stderr == ""


def test_the_text_of_results_is_not_empty(notebook: Executed) -> None:
    assert notebook["explain"].printed == "A GPU ran out of memory. Tried to allocate 2.00 GiB.\n"
    assert notebook["summary text"].printed.startswith("layer ")
    verdict, options = notebook["plan"].printed.splitlines()
    assert verdict.startswith("Fits: needs")
    assert options.startswith("[")
    for name in ("explain", "summary text", "plan"):
        assert notebook[name].shown == []


def test_results_are_shown_once_and_escaped(notebook: Executed) -> None:
    for name in ("explain shown", "summary shown"):
        (data,) = notebook[name].shown
        assert set(data) == {"text/plain", "text/html"}
    (data,) = notebook["explain shown"].shown
    assert "&lt;b&gt;" in data["text/html"]
    assert "<b>" not in data["text/html"]
    assert "\x1b" not in data["text/html"] + data["text/plain"]
    (data,) = notebook["hostile"].shown
    assert "&lt;script&gt;alert(1)" in data["text/html"]
    assert "<script" not in data["text/html"]


def test_a_cell_is_recorded_on_the_virtual_gpu_of_the_notebook(notebook: Executed) -> None:
    number = notebook["record"].number
    assert notebook["record"].printed == f"virtual GPU 0 cell [{number}] 2\n"


def test_the_last_value_of_a_recorded_cell_is_shown(notebook: Executed) -> None:
    value, report = notebook["value"].shown
    assert value["text/plain"] == "42"
    assert "text/html" in report


def test_a_plain_cell_that_fails_shows_the_holder_and_releases_its_tensors(notebook: Executed) -> None:
    failed = notebook["plain failure"]
    (release,) = failed.shown
    lines = release["text/plain"].splitlines()
    assert lines[0] == f"Out of memory at cell [{failed.number}], line 4."
    assert "local (list" in lines[2]
    assert f"cell [{failed.number}], line 4" in lines[2]
    assert f"Deleted results of earlier cells: Out[{notebook['out'].number}]." in lines[-1]
    allocated, in_out, size = notebook["after plain failure"].printed.split()
    assert (int(allocated), in_out, size) == (8, "False", "100")


def test_variables_of_the_user_are_listed_and_deleted_on_request(notebook: Executed) -> None:
    (release,) = notebook["variable"].shown
    assert "Largest variables: `many`" in release["text/plain"]
    (result,) = notebook["free"].shown
    assert result["text/plain"].startswith("Freed 96.0 MiB")
    assert "Deleted: many." in result["text/plain"]


def test_other_errors_are_raised_after_the_report(notebook: Executed) -> None:
    failed = notebook["other error"]
    assert failed.shown[0]["text/plain"].startswith("Failed with ZeroDivisionError")
    assert f"Cell In[{failed.number}], line 2" in failed.traceback


def test_incorrect_use_is_reported_in_one_line(notebook: Executed) -> None:
    assert notebook["usage"].stderr.startswith("UsageError: Usage: `%%legroom` records a cell")
    assert "takes at most one argument" in notebook["bad name"].stderr
    assert not notebook["use off"].shown
    assert "UsageError: Cell magic `%%legroom` not found" in notebook["unloaded"].stderr


def test_a_saved_recording_contains_the_names_of_cells(notebook: Executed) -> None:
    assert not notebook["saved"].errors
    capture = read_capture(notebook.folder / "cell.legroom")
    files = {event.frame.file for event in capture.events if isinstance(event, Alloc) and event.frame}
    assert f"cell [{notebook['setup'].number}]" in files
    assert not any("ipykernel" in file for file in files)
    assert f"cell [{notebook['setup'].number}], line 3" in block_text(report_from_capture(capture))
