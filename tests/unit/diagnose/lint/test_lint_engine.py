"""The lint engine: encodings, line endings, notebooks, links, broken code, ignore comments and settings."""

import codecs
import json
import os
from pathlib import Path

import pytest
from lint_cases import PRELUDE

from legroom.diagnose.lint import engine
from legroom.diagnose.lint.engine import lint_paths, lint_text
from legroom.diagnose.lint.flow.analysis import analyze_program
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.rules import RULES
from legroom.diagnose.lint.settings import Settings, _folder_settings, rule_codes
from legroom.errors import UsageError

LEAK = (
    PRELUDE
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
FIXED = LEAK.replace("losses.append(loss)", "losses.append(loss.detach())")


@pytest.fixture(autouse=True)
def forget_settings() -> None:
    _folder_settings.cache_clear()


def test_every_rule_has_a_page_with_its_code() -> None:
    assert sorted(RULES) == rule_codes()


def test_finding_has_line_and_column(tmp_path: Path) -> None:
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
        "message": "`losses` stores `loss` with its autograd graph, which keeps the graph of every step alive",
        "fix": {
            "applicability": "safe",
            "edits": [{"line": 16, "column": 23, "end_line": 16, "end_column": 23, "text": ".detach()"}],
        },
    }


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (LEAK.encode(), FIXED.encode()),
        (codecs.BOM_UTF8 + LEAK.encode(), codecs.BOM_UTF8 + FIXED.encode()),
        (LEAK.replace("\n", "\r\n").encode(), FIXED.replace("\n", "\r\n").encode()),
        (
            f"# -*- coding: latin-1 -*-\n# é\n{LEAK}".encode("latin-1"),
            f"# -*- coding: latin-1 -*-\n# é\n{FIXED}".encode("latin-1"),
        ),
        (LEAK.replace("    ", "\t").encode(), FIXED.replace("    ", "\t").encode()),
        (LEAK.rstrip("\n").encode(), FIXED.rstrip("\n").encode()),
    ],
    ids=["plain", "byte order mark", "CRLF", "latin-1", "tabs", "no newline at the end"],
)
def test_fix_changes_nothing_else(tmp_path: Path, before: bytes, after: bytes) -> None:
    file = tmp_path / "train.py"
    file.write_bytes(before)
    report = lint_paths([str(file)], fix=True)
    assert file.read_bytes() == after
    assert (report.fixed, report.findings) == (1, [])


def test_added_lines_use_the_line_endings_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    body = PRELUDE + "model.eval()\nfor x, y in train_loader:\n    print(model(x).sum().item())\n"
    file.write_bytes(body.replace("\n", "\r\n").encode())
    lint_paths([str(file)], fix=True)
    assert b"with torch.no_grad():\r\n    for x, y" in file.read_bytes()
    assert b"\n" not in file.read_bytes().replace(b"\r\n", b"")


def test_diff_does_not_change_files(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(LEAK)
    report = lint_paths([str(file)], diff=True)
    assert file.read_text() == LEAK
    assert "-    losses.append(loss)\n+    losses.append(loss.detach())\n" in report.diff


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"import torch\ndef f(:\n", "not checked because of a syntax error at line 2: def f(:"),
        (b"def f(:\n", "not checked because of a syntax error at line 1: def f(:"),
        (b"import torch\nprint 'hello'\n", "not checked because line 2 is Python 2 code"),
        (
            b"try:\n    pass\nexcept ValueError, error:\n    pass\n",
            "not checked because line 3 is Python 2 code",
        ),
        (b"\x7fELF\x00\x01\x02", "not checked because the file is not a text file"),
        (
            b"import torch  # \xff\xfe\n",
            "not checked because the file is not valid in its declared encoding (default: UTF-8)",
        ),
        (
            b"# coding: no-such\nimport torch\n",
            "not checked because the file is not valid in its declared encoding (default: UTF-8)",
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
def test_unreadable_file_is_reported_and_others_are_checked(
    tmp_path: Path, data: bytes, message: str
) -> None:
    (tmp_path / "bad.py").write_bytes(data)
    (tmp_path / "train.py").write_text(LEAK)
    report = lint_paths([str(tmp_path)], fix=True)
    assert [error.message for error in report.file_errors] == [message]
    assert report.fixed == 1
    assert (tmp_path / "bad.py").read_bytes() == data


def test_cyclic_links_terminate(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LEAK)
    (tmp_path / "again").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "loop.py").symlink_to(tmp_path / "loop.py")
    report = lint_paths([str(tmp_path)])
    assert len(report.findings) == 1
    assert [error.message for error in report.file_errors] == [
        "cannot be read: too many levels of symbolic links"
    ]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_file_without_permission_is_reported(tmp_path: Path) -> None:
    (tmp_path / "secret.py").write_text(LEAK)
    (tmp_path / "secret.py").chmod(0)
    (error,) = lint_paths([str(tmp_path)]).file_errors
    assert error.message == "cannot be read: permission denied"


def test_deep_nesting_is_reported(tmp_path: Path) -> None:
    (tmp_path / "deep.py").write_text("import torch\nx.backward()\nx = " + "-" * 600 + "1\n")
    report = lint_paths([str(tmp_path)])
    assert [error.message for error in report.file_errors] == [
        "not checked because the code is nested too deeply"
    ]


def test_internal_error_is_reported_and_other_files_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "leak.py").write_text(LEAK)
    (tmp_path / "other.py").write_text(f"fault = 1\n{LEAK}")

    def analyze(program: Program) -> None:
        if "fault" in program.text:
            raise KeyError("fault")
        analyze_program(program)

    monkeypatch.setattr(engine, "analyze_program", analyze)
    report = lint_paths([str(tmp_path)])
    assert [Path(each.file).name for each in report.findings] == ["leak.py"]
    assert [(Path(each.file).name, each.message) for each in report.file_errors] == [
        ("other.py", "not checked because of an internal error (KeyError: 'fault')")
    ]


def test_empty_directory_is_reported(tmp_path: Path) -> None:
    (error,) = lint_paths([str(tmp_path)]).file_errors
    assert error.message == "no Python files or notebooks found"


def test_missing_path_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere.py does not exist"):
        lint_paths([str(tmp_path / "nowhere.py")])
    with pytest.raises(UsageError, match="The path is empty"):
        lint_paths([""])


def test_environment_directories_are_skipped_unless_given(tmp_path: Path) -> None:
    other = tmp_path / ".venv" / "site-packages"
    other.mkdir(parents=True)
    (other / "library.py").write_text(LEAK)
    (tmp_path / "train.py").write_text(LEAK)
    assert len(lint_paths([str(tmp_path)]).findings) == 1
    assert len(lint_paths([str(other)]).findings) == 1


@pytest.mark.parametrize(
    ("comment", "reported"),
    [
        ("# legroom: ignore", False),
        ("# legroom: ignore[LG101]", False),
        ("# why not  # legroom: ignore[LG201, LG101]", False),
        ("# legroom: ignore[LG201]", True),
    ],
)
def test_ignore_comment_disables_a_rule_on_its_line(comment: str, reported: bool) -> None:
    text = LEAK.replace("losses.append(loss)", f"losses.append(loss)  {comment}")
    assert bool(lint_text(text)) is reported


def test_settings_come_from_the_nearest_pyproject(tmp_path: Path) -> None:
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


def test_command_line_overrides_settings(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LEAK)
    (tmp_path / "pyproject.toml").write_text('[tool.legroom.lint]\nignore = ["LG101"]\n')
    assert lint_paths([str(tmp_path)]).findings == []
    assert lint_paths([str(tmp_path)], ignore=["LG2"]).findings
    assert lint_paths([str(tmp_path)], select=["LG2,LG3"]).findings == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("selct = []", "unknown setting `selct`"),
        ('select = "LG1"', "`select` must be a list of strings"),
        ('select = ["E501"]', "unknown rule E501"),
        ("per-file-ignores = []", "must be a table"),
        ("select = [", "is not valid TOML"),
    ],
)
def test_invalid_settings_are_rejected(tmp_path: Path, settings: str, message: str) -> None:
    (tmp_path / "train.py").write_text(LEAK)
    (tmp_path / "pyproject.toml").write_text(f"[tool.legroom.lint]\n{settings}\n")
    with pytest.raises(UsageError, match=message):
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


LOOP = LEAK.removeprefix(PRELUDE).rstrip("\n")


def test_notebook_names_are_known_across_cells(tmp_path: Path) -> None:
    (tmp_path / "train.ipynb").write_text(notebook(PRELUDE, LOOP))
    (finding,) = lint_paths([str(tmp_path)]).findings
    assert (finding.cell, finding.line, finding.column) == (3, 7, 19)
    assert finding.as_json()["cell"] == 3


def test_magics_and_other_languages_are_ignored(tmp_path: Path) -> None:
    magic = "!pip install torch\n%matplotlib inline\nfiles = !ls\nmodel?\nif True:\n    %time pass\n"
    cells = [PRELUDE, magic, "%%bash\nls -l | wc\n", "%%time\n" + LOOP]
    (tmp_path / "train.ipynb").write_text(notebook(*cells))
    report = lint_paths([str(tmp_path)])
    assert report.file_errors == []
    assert [(finding.cell, finding.line) for finding in report.findings] == [(5, 8)]


@pytest.mark.parametrize("indent", [1, 4])
def test_notebook_fix_changes_only_its_line(tmp_path: Path, indent: int) -> None:
    file = tmp_path / "train.ipynb"
    before = notebook(PRELUDE, "%%time\n" + LOOP, indent=indent)
    file.write_text(before)
    assert lint_paths([str(file)], fix=True).fixed == 1
    assert file.read_text() == before.replace("losses.append(loss)", "losses.append(loss.detach())")


def test_syntax_error_in_a_cell_is_reported(tmp_path: Path) -> None:
    (tmp_path / "train.ipynb").write_text(notebook("import torch\n", "def f(:\n"))
    (error,) = lint_paths([str(tmp_path)]).file_errors
    assert error.message == "not checked because of a syntax error at cell 3, line 1: def f(:"


@pytest.mark.parametrize("text", ["{", "[]", '{"cells": 3}', "", "[" * 100_000])
def test_invalid_notebook_is_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.ipynb").write_text(text)
    (error,) = lint_paths([str(tmp_path)]).file_errors
    assert error.message.startswith("not checked because the file is not a valid notebook: ")


def test_findings_are_in_file_order(tmp_path: Path) -> None:
    names = [str(tmp_path / f"train_{number}.py") for number in range(6)]
    for name in names:
        Path(name).write_text(f'"""{"long " * 20_000}"""\n{LEAK}')
    assert [finding.file for finding in lint_paths([str(tmp_path)]).findings] == names


def test_long_method_chain_is_evaluated_once() -> None:
    """Evaluating each link of the chain twice would take exponential time."""
    text = LEAK.replace("losses.append(loss)", f"losses.append(loss{'.clone()' * 60})")
    assert [finding.code for finding in lint_text(text)] == ["LG101"]


@pytest.mark.parametrize(("framework", "reported"), [("mxnet as mx", False), ("torch", True)])
def test_file_of_another_framework_is_not_checked(framework: str, reported: bool) -> None:
    loop = "for x, y in train_data:\n    loss = net(x)\n    loss.backward()\n"
    evaluation = "net.eval()\nfor x in test_data:\n    print(net(x).mean())\n"
    assert bool(lint_text(f"import {framework}\n{loop}{evaluation}")) is reported


def test_self_containing_containers_terminate() -> None:
    places = "".join(f"    book['k{number}'] = book\n    pair = (pair, pair)\n" for number in range(12))
    assert lint_text(f"import torch\nbook, pair = {{}}, ()\nfor step in range(3):\n{places}") == []


def test_advice_is_given_only_if_it_is_selected() -> None:
    text = PRELUDE + "model = nn.DataParallel(model)\nscaler = torch.cuda.amp.GradScaler()\n"
    assert lint_text(text) == []
    assert [each.code for each in lint_text(text, settings=Settings(select=("LG",)))] == ["LG501", "LG402"]
    assert [each.code for each in lint_text(text, settings=Settings(select=("LG402",)))] == ["LG402"]
