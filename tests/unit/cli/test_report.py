"""`legroom report` for valid and invalid captures."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from legroom.cli import main
from legroom.memory.annotations import ExitReason, RunEnded
from legroom.memory.capture.capture import CaptureWriter
from legroom.memory.event_base import Category, Frame, Phase
from legroom.memory.events import Alloc, SegmentChange
from legroom.memory.live.folder import process_identity
from legroom.units import MiB

RUN = {
    "options": ["--gpu", "64MiB"],
    "target": ["train.py"],
    "arguments": [],
    "devices": [{"index": 0, "name": "Legroom virtual GPU 0", "kind": "virtual", "capacity": 64 * MiB}],
}


@pytest.fixture
def capture(tmp_path, monkeypatch):
    """Creates a capture with one live storage in the current directory. Sizes are in MiB."""
    monkeypatch.chdir(tmp_path)

    def capture(name: str, size: int = 8, ending: RunEnded | None = None, run: dict[str, Any] = RUN) -> str:
        with CaptureWriter(name, run=run) as writer:
            writer.write(SegmentChange(0.1, 0, 20 * MiB))
            frame = Frame("/project/train.py", 3, "main")
            writer.write(
                Alloc(
                    0.1,
                    1,
                    size * MiB,
                    size * MiB,
                    0,
                    0,
                    Category.INPUT,
                    Phase.OTHER,
                    0,
                    "",
                    frame,
                    "aten.zeros",
                )
            )
            if ending is not None:
                writer.write(ending)
        return name

    return capture


def test_the_report_is_printed_as_text(capture, capfd):
    assert main(["report", capture("a.legroom")]) == 0
    out = capfd.readouterr().out
    assert out.startswith("Ended after 0.1 s. Peak memory: 8.0 MiB allocated (20.0 MiB")
    assert out.endswith("legroom report a.legroom --html a.html   # a web page with charts\n")


def test_the_report_is_printed_as_json(capture, capfd):
    assert main(["report", "--format", "json", capture("a.legroom")]) == 0
    assert json.loads(capfd.readouterr().out)["peak_allocated_bytes"] == 8 * MiB


def test_two_captures_are_compared(capture, capfd):
    assert main(["report", capture("b.legroom", 12), "--compare", capture("a.legroom")]) == 0
    sentence = (
        "Peak allocated memory increased by 4.0 MiB, from 8.0 MiB in a.legroom to 12.0 MiB, mostly input."
    )
    assert sentence in " ".join(capfd.readouterr().out.split())


def test_a_comparison_is_printed_as_json(capture, capfd):
    assert (
        main(["report", capture("b.legroom", 12), "--compare", capture("a.legroom"), "--format", "json"]) == 0
    )
    compared = json.loads(capfd.readouterr().out)["compared"]
    assert compared["by_category"][0]["delta_bytes"] == 4 * MiB


def test_a_truncated_capture_is_reported(capture, tmp_path, capfd):
    file = tmp_path / capture("a.legroom")
    file.write_bytes(file.read_bytes()[:-25])
    assert main(["report", "a.legroom"]) == 0
    assert " ".join(capfd.readouterr().out.split()).startswith(
        "The capture ends early, after 0.1 s: the file was cut off, or the process was killed or is still running. Peak"
    )


def cut_off(file: Path) -> str:
    file.write_bytes(file.read_bytes()[:-25])
    return file.name


def test_a_run_that_is_still_in_progress_is_described_as_such(capture, tmp_path, capfd):
    name = cut_off(tmp_path / capture("a.legroom", run={**RUN, "recorder": process_identity()}))
    if not process_identity()["machine"]:
        pytest.skip("the system does not identify a boot of the machine")
    assert main(["report", name]) == 0
    assert capfd.readouterr().out.startswith("The run is still in progress after 0.1 s. Peak memory:")
    assert main(["explain", name]) == 2
    assert "The run in a.legroom is still in progress. It has no error so far." in capfd.readouterr().err
    assert main(["report", name, "--compare", capture("b.legroom")]) == 0
    assert "still in progress" in capfd.readouterr().out


def test_a_run_that_has_ended_is_not_described_as_in_progress(capture, tmp_path, capfd):
    ended = {**process_identity(), "started": "0"}  # another process had this ID
    if not ended["machine"]:
        pytest.skip("the system does not identify a boot of the machine")
    name = cut_off(tmp_path / capture("a.legroom", run={**RUN, "recorder": ended}))
    early = "the file was cut off, or the process was killed."
    assert main(["report", name]) == 0
    assert early in " ".join(capfd.readouterr().out.split())
    assert main(["explain", name]) == 2
    assert f"The capture a.legroom ends early and contains no error: {early}" in capfd.readouterr().err
    assert main(["diff", name, capture("b.legroom")]) == 0
    compared = " ".join(capfd.readouterr().out.split())
    assert f"a.legroom: The capture ends early, after 0 steps: {early} A complete run" in compared


@pytest.mark.parametrize("recorder", [None, 1, {}, {"pid": 1, "started": "0", "machine": "another machine"}])
def test_a_run_on_another_machine_may_be_in_progress(capture, tmp_path, capfd, recorder):
    name = cut_off(tmp_path / capture("a.legroom", run={**RUN, "recorder": recorder}))
    assert main(["report", name]) == 0
    assert "or the process was killed or is still running." in " ".join(capfd.readouterr().out.split())


@pytest.mark.parametrize(
    ("code", "sentence"),
    [(0, "The run in a.legroom ended without"), (3, "The run in a.legroom exited with code 3 without")],
)
def test_explain_names_the_exit_code_of_a_run_without_an_error(capture, capfd, code, sentence):
    assert main(["explain", capture("a.legroom", ending=RunEnded(1.0, code, ExitReason.EXITED))]) == 2
    assert f"{sentence} an error." in capfd.readouterr().err


def test_a_damaged_capture_is_not_called_a_killed_run(capture, tmp_path, capfd):
    file = tmp_path / capture("a.legroom")
    data = file.read_bytes()
    file.write_bytes(data[:-20] + bytes(20))
    assert main(["report", "a.legroom"]) == 0
    assert " ".join(capfd.readouterr().out.split()).startswith(
        "The capture is damaged after 0.1 s. The report covers only the part before the damage. Peak memory:"
    )
    assert main(["explain", "a.legroom"]) == 2
    assert "The capture a.legroom is damaged." in capfd.readouterr().err


def test_a_comparison_names_a_run_that_did_not_finish(capture, capfd):
    ending = RunEnded(1.0, 1, ExitReason.RAISED, "ValueError: x", "")
    assert main(["report", capture("b.legroom"), "--compare", capture("a.legroom", ending=ending)]) == 0
    shown = " ".join(capfd.readouterr().out.split())
    assert "a.legroom: Failed with ValueError after 0 steps. A complete run may have a higher peak." in shown
    assert main(["report", "a.legroom", "--compare", "b.legroom", "--format", "json"]) == 0
    assert json.loads(capfd.readouterr().out)["compared"]["before"]["steps"] == 0
    finished = RunEnded(1.0, 0, ExitReason.FINISHED, "", "")
    assert main(["report", capture("c.legroom"), "--compare", capture("d.legroom", ending=finished)]) == 0
    assert "A complete run" not in capfd.readouterr().out


def another_version(data: bytes) -> bytes:
    lines = gzip.decompress(data).decode().splitlines()
    header = {**json.loads(lines[0]), "version": 999}
    return gzip.compress("\n".join([json.dumps(header), *lines[1:]]).encode())


@pytest.mark.parametrize(
    "spoil",
    [
        another_version,
        lambda data: b"not a capture at all",
        lambda data: b"",
        lambda data: gzip.compress(b"{}\n"),
    ],
    ids=["another version", "text", "empty", "another gzip"],
)
def test_an_invalid_capture_is_rejected_in_one_line(capture, tmp_path, capfd, spoil):
    file = tmp_path / capture("a.legroom")
    file.write_bytes(spoil(file.read_bytes()))
    assert main(["report", "a.legroom"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("legroom: a.legroom ")
    assert err.count("\n") == 1


def test_a_comparison_with_a_missing_capture_is_rejected(capture, capfd):
    assert main(["report", capture("a.legroom"), "--compare", "missing.legroom"]) == 2
    assert capfd.readouterr() == ("", "legroom: missing.legroom does not exist. Check the path.\n")


def test_an_html_page_is_written(capture, tmp_path, capfd):
    words = ["report", capture("a.legroom"), "--html", "a.html"]
    assert main(words) == 0
    assert capfd.readouterr().out.startswith("Wrote a.html (")
    (tmp_path / "a.html").write_text("mine")
    assert main(words) == 2
    assert capfd.readouterr().err.startswith("legroom: a.html exists. Add --force to overwrite the file")
    assert (tmp_path / "a.html").read_text() == "mine"
    assert main([*words, "--force", "--no-source"]) == 0
    assert "Memory of train.py" in (tmp_path / "a.html").read_text()


@pytest.mark.parametrize("name", ["new.py", "train.PY", "link.html"])
def test_a_page_is_never_written_to_a_script(capture, tmp_path, capfd, name):
    recorded = capture("a.legroom")
    (tmp_path / "train.PY").write_text("import torch")
    (tmp_path / "link.html").symlink_to(tmp_path / "train.PY")
    for words in (["report", recorded], ["diff", recorded, recorded]):
        assert main([*words, "--html", name, "--force"]) == 2
        assert "is a script, and Legroom will never write a script" in capfd.readouterr().err
    assert not (tmp_path / "new.py").exists()
    assert (tmp_path / "train.PY").read_text() == "import torch"


def test_a_folder_instead_of_a_page_is_reported(capture, tmp_path, capfd):
    recorded = capture("a.legroom")
    (tmp_path / "sub").mkdir()
    for options in ([], ["--force"]):
        assert main(["report", recorded, "--html", "sub", *options]) == 2
        assert capfd.readouterr().err.startswith("legroom: sub is a directory. Specify the path to a file")


@pytest.mark.parametrize("name", ["a.legroom", "notes"])
def test_a_page_overwrites_only_html_files(capture, tmp_path, capfd, name):
    recorded = capture("a.legroom")
    (tmp_path / "notes").write_text("mine")
    before = (tmp_path / name).read_bytes()
    for words in (["report", recorded], ["diff", recorded, recorded]):
        assert main([*words, "--html", name, "--force"]) == 2
        assert capfd.readouterr().err.startswith(f"legroom: {name} is not an HTML file")
    assert (tmp_path / name).read_bytes() == before


def test_a_page_is_opened_in_the_browser(capture, tmp_path, monkeypatch, capfd):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or len(opened) == 1)
    words = ["report", capture("a.legroom"), "--html", "a.html", "--force", "--open"]
    assert main(words) == 0
    assert opened == [(tmp_path / "a.html").as_uri()]
    assert main(words) == 2
    assert capfd.readouterr().err == "legroom: No browser found. Open a.html in a browser.\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--html", "missing/a.html"], "Cannot write missing/a.html: No such file or directory."),
        (["--html", ".", "--force"], ". is a directory."),
        (["--open"], "--force, --open and --no-source require --html PAGE."),
        (["--html", "a.html", "--device", "3"], "The capture has no device 3. Devices: 0."),
        (["--device", "3"], "The capture has no device 3. Devices: 0."),
        (["--html", "a.html", "--compare", "a.legroom"], "--html and --compare cannot be combined."),
    ],
)
def test_a_page_that_cannot_be_written_is_an_error(capture, capfd, words, message):
    assert main(["report", capture("a.legroom"), *words]) == 2
    assert capfd.readouterr().err.startswith(f"legroom: {message}")


def test_a_comparison_page_is_written(capture, tmp_path, capfd):
    words = ["diff", capture("a.legroom", 8), capture("b.legroom", 12)]
    assert main(words) == 0
    shown = " ".join(capfd.readouterr().out.split())
    assert shown.startswith(
        "Peak allocated memory increased by 4.0 MiB, from 8.0 MiB in a.legroom to 12.0 MiB in b.legroom, mostly input."
    )
    assert main([*words, "--fail-over", "4MiB"]) == 0
    assert "--fail-over" not in capfd.readouterr().out
    assert main([*words, "--fail-over", "3MiB", "--html", "d.html"]) == 1
    out = capfd.readouterr().out
    assert "Peak allocated memory increased by more than 3.0 MiB (--fail-over)." in out
    assert "Wrote d.html (" in out
    page = (tmp_path / "d.html").read_text()
    assert (
        "Peak allocated memory increased by 4.0 MiB, from 8.0 MiB in a.legroom to 12.0 MiB in b.legroom"
        in page
    )
    assert "http" not in page.replace("http-equiv", "")
    assert main([*words, "--html", "d.html"]) == 2
    assert "d.html exists" in capfd.readouterr().err
    assert main([*words, "--format", "json", "--fail-over", "3MiB"]) == 1
    result = json.loads(capfd.readouterr().out)
    assert (result["schema"], result["failed"]) == ("legroom.diff/1", True)
    assert result["allocated"]["delta_bytes"] == 4 * MiB


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["missing.legroom"], "missing.legroom does not exist. Check the path."),
        (["a.legroom", "--fail-over", "much"], "`much` is not a valid size."),
        (["a.legroom", "--open"], "--force and --open require --html PAGE."),
        ([], "Missing argument 'AFTER'. See `legroom diff --help`."),
    ],
)
def test_an_invalid_comparison_is_an_error(capture, capfd, words, message):
    assert main(["diff", capture("a.legroom"), *words]) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"legroom: {message}")
