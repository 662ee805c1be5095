"""A file without possible findings is skipped, reports are stored by content, and results are shown as they arrive."""

import ast
import json
import os
from importlib import import_module
from pathlib import Path

import pytest
from lint_cases import snippets

from legroom.diagnose.lint import engine
from legroom.diagnose.lint.engine import lint_paths, lint_text
from legroom.diagnose.lint.relevance import may_have_findings

IMPORTS = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
REPORTED = snippets("lint_rules/reported")
command = import_module("legroom.cli.lint")
LEAK = IMPORTS + (
    "losses = []\nfor x in loader:\n    loss = model(x).mean()\n    loss.backward()\n    losses.append(loss)\n"
)


@pytest.mark.parametrize("title", REPORTED)
def test_file_with_findings_is_not_skipped(title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = IMPORTS + REPORTED[title]
    if not may_have_findings(ast.parse(text), text):
        monkeypatch.setattr(engine, "may_have_findings", lambda *_: True)
        assert lint_text(text) == []


def test_definition_of_a_model_is_skipped() -> None:
    text = IMPORTS + (
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.blocks = nn.ModuleList()\n"
        "        for i in range(4):\n            self.blocks.append(nn.Linear(4, 4))\n"
        "    def forward(self, x):\n        for block in self.blocks:\n            x = block(x)\n        return x\n"
    )
    assert not may_have_findings(ast.parse(text), text)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEGROOM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_unchanged_file_is_not_checked_again(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "train.py"
    file.write_text(LEAK)
    (first,) = lint_paths([str(file)]).findings
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_check", lambda *_: pytest.fail("checked again"))
        assert lint_paths([str(file)]).findings == [first]
    (other,) = lint_paths([str(file)], select=["LG101"]).findings
    assert other == first
    assert lint_paths([str(file)], select=["LG2"]).findings == []
    file.write_text("\n" + LEAK)
    assert [each.line for each in lint_paths([str(file)]).findings] == [(first.line or 0) + 1]
    assert "loss.detach()" not in file.read_text()
    assert lint_paths([str(file)], fix=True).fixed == 1
    assert "losses.append(loss.detach())" in file.read_text()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"findings": [{}], "errors": []}', '{"findings": 3}'])
def test_damaged_cache_is_ignored(tmp_path: Path, cache: Path, content: str) -> None:
    file = tmp_path / "train.py"
    file.write_text(LEAK)
    found = lint_paths([str(file)]).findings
    (stored,) = cache.rglob("*.json")
    stored.write_text(content)
    assert lint_paths([str(file)]).findings == found


def test_syntax_error_is_reported_from_the_cache(tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("import torch\nx = (\n")
    assert lint_paths([str(file)]).file_errors == lint_paths([str(file)]).file_errors != []


def test_reports_arrive_in_order_with_their_number(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.py").write_text(LEAK)
    seen: list[tuple[str | None, int, int]] = []
    lint_paths(
        [str(tmp_path)],
        on_report=lambda report, checked, files: seen.append((report.findings[0].file, checked, files)),
    )
    assert seen == [(str(tmp_path / f"{name}.py"), number, 3) for number, name in enumerate("abc", 1)]


def test_progress_is_printed_if_there_are_no_findings_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in "abc":
        (tmp_path / f"{name}.py").write_text("import torch\n")
    monkeypatch.setattr(command, "SECONDS_WITHOUT_OUTPUT", 0)
    assert command.lint([str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert captured.err == "legroom: Checked 1 of 3 files\nlegroom: Checked 2 of 3 files\n"
    assert captured.out == "No problems found in 3 files.\n"


@pytest.mark.parametrize("format", ["concise", "json"])
def test_output_is_the_same_with_the_cache(
    tmp_path: Path, cache: Path, format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(LEAK)
    outputs = []
    for _ in range(2):
        assert command.lint([str(tmp_path / "train.py")], format=command.LintFormat(format)) == 1
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] != ""
    if format == "json":
        assert json.loads(outputs[0])[0]["code"] == "LG101"
    assert len(os.listdir(cache / "lint")) == 1
