"""Lines of the user's code in a capture."""

from legroom.diagnose.report.source_lines import from_annotations, read_sources, to_annotations
from legroom.memory.event_base import Frame


def test_line_is_read_with_its_context(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("".join(f"line{n}\n" for n in range(1, 10)))
    assert read_sources([Frame(str(file), 5, "f")]) == {str(file): {n: f"line{n}" for n in range(3, 8)}}


def test_context_is_limited_to_the_file(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("one\ntwo")
    assert read_sources([Frame(str(file), 2, "f"), Frame(str(file), 99, "f")]) == {
        str(file): {1: "one", 2: "two"}
    }


def test_missing_file_is_ignored():
    assert read_sources([Frame("/nowhere/train.py", 3, "f")]) == {}


def test_source_lines_are_read_back_from_annotations():
    lines = {"a.py": {1: "x", 12: "y"}, "b.py": {3: "z"}}
    assert from_annotations(to_annotations(lines, 0.0)) == lines
