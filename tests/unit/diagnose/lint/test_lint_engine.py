"""Files as they are: encodings, line ends, notebooks, links, broken code; comments and settings that switch rules off."""

import codecs
import json
import os
from pathlib import Path

import pytest
from lint_cases import BEGINNING

from legroom.diagnose.lint.engine import lint_paths, lint_text
from legroom.diagnose.lint.rules import RULES
from legroom.diagnose.lint.settings import _settings_of_folder, rule_codes
from legroom.errors import UsageError

LEAK = (
    BEGINNING
    + """\
losses = []
for x, y in train_loader:
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss)
"""
)
MENDED = LEAK.replace("losses.append(loss)", "losses.append(loss.item())")


@pytest.fixture(autouse=True)
def forget_settings() -> None:
    _settings_of_folder.cache_clear()


def test_every_rule_has_a_page_with_its_code() -> None:
    assert sorted(RULES) == rule_codes()


def test_a_finding_has_its_exact_place(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LEAK)
    (finding,) = lint_paths([str(tmp_path)]).findings
    assert (finding.code, finding.line, finding.column, finding.end_column) == ("LG101", 16, 19, 23)
    assert dict(finding.source)[16] == "    losses.append(loss)"


def test_json_has_the_documented_keys() -> None:
    (finding,) = lint_text(LEAK, file="train.py")
    assert finding.as_json() == {
        "code": "LG101",
        "file": "train.py",
        "line": 16,
        "column": 19,
        "message": "`losses` collects `loss` with its graph: the graph of every step stays alive",
        "fix": {
            "applicability": "safe",
            "edits": [{"line": 16, "column": 23, "end_line": 16, "end_column": 23, "text": ".item()"}],
        },
    }


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (LEAK.encode(), MENDED.encode()),
        (codecs.BOM_UTF8 + LEAK.encode(), codecs.BOM_UTF8 + MENDED.encode()),
        (LEAK.replace("\n", "\r\n").encode(), MENDED.replace("\n", "\r\n").encode()),
        (
            f"# -*- coding: latin-1 -*-\n# é\n{LEAK}".encode("latin-1"),
            f"# -*- coding: latin-1 -*-\n# é\n{MENDED}".encode("latin-1"),
        ),
        (LEAK.replace("    ", "\t").encode(), MENDED.replace("    ", "\t").encode()),
        (LEAK.rstrip("\n").encode(), MENDED.rstrip("\n").encode()),
    ],
    ids=["plain", "byte order mark", "CRLF", "latin-1", "tabs", "no newline at the end"],
)
def test_a_fix_changes_nothing_else(tmp_path: Path, before: bytes, after: bytes) -> None:
    file = tmp_path / "train.py"
    file.write_bytes(before)
    report = lint_paths([str(file)], fix=True)
    assert file.read_bytes() == after
    assert (report.fixed, report.findings) == (1, [])


def test_lines_that_a_fix_adds_end_like_the_others(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    body = BEGINNING + "model.eval()\nfor x, y in train_loader:\n    print(model(x).sum().item())\n"
    file.write_bytes(body.replace("\n", "\r\n").encode())
    lint_paths([str(file)], fix=True)
    assert b"with torch.no_grad():\r\n    for x, y" in file.read_bytes()
    assert b"\n" not in file.read_bytes().replace(b"\r\n", b"")


def test_a_diff_changes_no_file(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(LEAK)
    report = lint_paths([str(file)], diff=True)
    assert file.read_text() == LEAK
    assert "-    losses.append(loss)\n+    losses.append(loss.item())\n" in report.diff


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"import torch\ndef f(:\n", "not checked: a syntax error at line 2: def f(:"),
        (b"def f(:\n", "not checked: a syntax error at line 1: def f(:"),
        (b"import torch\nprint 'hello'\n", "not checked: line 2 is Python 2"),
        (b"try:\n    pass\nexcept ValueError, error:\n    pass\n", "not checked: line 3 is Python 2"),
        (b"\x7fELF\x00\x01\x02", "not text, not checked"),
        (
            b"import torch  # \xff\xfe\n",
            "not text in the encoding it declares (UTF-8 where it declares none), not checked",
        ),
        (
            b"# coding: no-such\nimport torch\n",
            "not text in the encoding it declares (UTF-8 where it declares none), not checked",
        ),
    ],
    ids=[
        "syntax error",
        "without torch",
        "Python 2",
        "Python 2 except",
        "binary",
        "not UTF-8",
        "unknown encoding",
    ],
)
def test_what_cannot_be_checked_is_one_sentence_and_the_rest_goes_on(
    tmp_path: Path, data: bytes, sentence: str
) -> None:
    (tmp_path / "bad.py").write_bytes(data)
    (tmp_path / "train.py").write_text(LEAK)
    report = lint_paths([str(tmp_path)], fix=True)
    assert [trouble.sentence for trouble in report.troubles] == [sentence]
    assert report.fixed == 1
    assert (tmp_path / "bad.py").read_bytes() == data


def test_links_that_lead_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LEAK)
    (tmp_path / "again").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "loop.py").symlink_to(tmp_path / "loop.py")
    report = lint_paths([str(tmp_path)])
    assert len(report.findings) == 1
    assert [trouble.sentence for trouble in report.troubles] == [
        "cannot be read: too many levels of symbolic links"
    ]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "secret.py").write_text(LEAK)
    (tmp_path / "secret.py").chmod(0)
    (trouble,) = lint_paths([str(tmp_path)]).troubles
    assert trouble.sentence == "cannot be read: permission denied"


def test_deep_nesting_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "deep.py").write_text("import torch\nx = " + "-" * 600 + "1\n")
    report = lint_paths([str(tmp_path)])
    assert [trouble.sentence for trouble in report.troubles] == ["nested too deeply to be checked"]


def test_a_folder_without_python_is_said(tmp_path: Path) -> None:
    (trouble,) = lint_paths([str(tmp_path)]).troubles
    assert trouble.sentence == "no Python files or notebooks in it"


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no file or folder"):
        lint_paths([str(tmp_path / "nowhere.py")])
    with pytest.raises(UsageError, match="an empty path was given"):
        lint_paths([""])


def test_what_a_project_does_not_write_is_left_out_unless_given(tmp_path: Path) -> None:
    other = tmp_path / ".venv" / "site-packages"
    other.mkdir(parents=True)
    (other / "library.py").write_text(LEAK)
    (tmp_path / "train.py").write_text(LEAK)
    assert len(lint_paths([str(tmp_path)]).findings) == 1
    assert len(lint_paths([str(other)]).findings) == 1


@pytest.mark.parametrize(
    ("comment", "told"),
    [
        ("# legroom: ignore", False),
        ("# legroom: ignore[LG101]", False),
        ("# why not  # legroom: ignore[LG201, LG101]", False),
        ("# legroom: ignore[LG201]", True),
    ],
)
def test_a_comment_switches_a_rule_off_on_its_line(comment: str, told: bool) -> None:
    text = LEAK.replace("losses.append(loss)", f"losses.append(loss)  {comment}")
    assert bool(lint_text(text)) is told


def test_settings_of_the_nearest_project(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LEAK)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(LEAK)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "train.py").write_text(LEAK)
    (tmp_path / "pyproject.toml").write_text(
        '[tool.legroom.lint]\nexclude = ["old"]\nper-file-ignores = { "tests/*" = ["LG1"] }\n'
    )
    (finding,) = lint_paths([str(tmp_path)]).findings
    assert finding.file == str(tmp_path / "train.py")


def test_the_command_line_goes_before_the_settings(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LEAK)
    (tmp_path / "pyproject.toml").write_text('[tool.legroom.lint]\nignore = ["LG101"]\n')
    assert lint_paths([str(tmp_path)]).findings == []
    assert lint_paths([str(tmp_path)], ignore=["LG2"]).findings
    assert lint_paths([str(tmp_path)], select=["LG2,LG3"]).findings == []


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ("selct = []", "has no `selct`"),
        ('select = "LG1"', "`select` must be a list of texts"),
        ('select = ["E501"]', "no rule has the code E501"),
        ("per-file-ignores = []", "must be a table"),
        ("select = [", "cannot be read as TOML"),
    ],
)
def test_wrong_settings_are_refused_with_what_is_wrong(tmp_path: Path, settings: str, sentence: str) -> None:
    (tmp_path / "train.py").write_text(LEAK)
    (tmp_path / "pyproject.toml").write_text(f"[tool.legroom.lint]\n{settings}\n")
    with pytest.raises(UsageError, match=sentence):
        lint_paths([str(tmp_path)])


def notebook(*cells: str, indent: int = 1) -> str:
    return (
        json.dumps(
            {
                "cells": [
                    {"cell_type": "markdown", "metadata": {}, "source": ["# Title é\n"]},
                    *(
                        {
                            "cell_type": "code",
                            "execution_count": None,
                            "metadata": {},
                            "outputs": [],
                            "source": cell.splitlines(keepends=True),
                        }
                        for cell in cells
                    ),
                ],
                "metadata": {"kernelspec": {"language": "python"}},
                "nbformat": 4,
                "nbformat_minor": 5,
            },
            indent=indent,
            ensure_ascii=False,
        )
        + "\n"
    )


LOOP = LEAK.removeprefix(BEGINNING).rstrip("\n")


def test_names_are_known_from_cell_to_cell_and_places_are_cells(tmp_path: Path) -> None:
    (tmp_path / "train.ipynb").write_text(notebook(BEGINNING, LOOP))
    (finding,) = lint_paths([str(tmp_path)]).findings
    assert (finding.cell, finding.line, finding.column) == (3, 7, 19)
    assert finding.as_json()["cell"] == 3


def test_magics_and_other_languages_are_not_python(tmp_path: Path) -> None:
    magic = "!pip install torch\n%matplotlib inline\nfiles = !ls\nmodel?\nif True:\n    %time pass\n"
    cells = [BEGINNING, magic, "%%bash\nls -l | wc\n", "%%time\n" + LOOP]
    (tmp_path / "train.ipynb").write_text(notebook(*cells))
    report = lint_paths([str(tmp_path)])
    assert report.troubles == []
    assert [(finding.cell, finding.line) for finding in report.findings] == [(5, 8)]


@pytest.mark.parametrize("indent", [1, 4])
def test_a_fix_in_a_notebook_changes_that_line_alone(tmp_path: Path, indent: int) -> None:
    file = tmp_path / "train.ipynb"
    before = notebook(BEGINNING, "%%time\n" + LOOP, indent=indent)
    file.write_text(before)
    assert lint_paths([str(file)], fix=True).fixed == 1
    assert file.read_text() == before.replace("losses.append(loss)", "losses.append(loss.item())")


def test_a_broken_cell_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.ipynb").write_text(notebook("import torch\n", "def f(:\n"))
    (trouble,) = lint_paths([str(tmp_path)]).troubles
    assert trouble.sentence == "not checked: a syntax error at cell 3, line 1: def f(:"


@pytest.mark.parametrize("text", ["{", "[]", '{"cells": 3}', "", "[" * 100_000])
def test_what_is_no_notebook_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.ipynb").write_text(text)
    (trouble,) = lint_paths([str(tmp_path)]).troubles
    assert trouble.sentence.startswith("not a notebook: ")


def test_many_files_are_told_in_order(tmp_path: Path) -> None:
    names = [str(tmp_path / f"train_{number}.py") for number in range(6)]
    for name in names:
        Path(name).write_text(f'"""{"long " * 20_000}"""\n{LEAK}')
    assert [finding.file for finding in lint_paths([str(tmp_path)]).findings] == names


def test_a_long_chain_of_methods_is_read_once() -> None:
    """Twice for each link would never end."""
    text = LEAK.replace("losses.append(loss)", f"losses.append(loss{'.clone()' * 60})")
    assert [finding.code for finding in lint_text(text)] == ["LG101"]


def test_containers_that_are_put_into_themselves_come_to_an_end() -> None:
    places = "".join(f"    book['k{number}'] = book\n    pair = (pair, pair)\n" for number in range(12))
    assert lint_text(f"import torch\nbook, pair = {{}}, ()\nfor step in range(3):\n{places}") == []
