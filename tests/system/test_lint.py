"""`legroom lint` from the command line: formats, exit codes, standard input, a missing extra."""

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from legroom.cli import main

LEAK = """\
import torch

losses = []
for batch in loader:
    loss = model(batch).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss)
"""


def lint(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in this process."""
    command, stdout, stderr = ["lint", *arguments], io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        exit_code = main(command)
    return subprocess.CompletedProcess(command, exit_code, stdout.getvalue(), stderr.getvalue())


def run_python(*arguments: str, folder: Path, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run a new interpreter."""
    return subprocess.run(
        [sys.executable, *arguments], input=text, capture_output=True, text=True, cwd=folder
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(LEAK)
    (tmp_path / "broken.py").write_text("import torch\nprint 'Python 2'\n")
    return tmp_path


def test_finding_is_shown_with_code_frame_and_fix(project: Path) -> None:
    done = lint("train.py", folder=project)
    assert done.returncode == 1
    assert (
        done.stdout
        == """\
LG101 `losses` stores `loss` with its autograd graph, which keeps the graph of
every step alive
  --> train.py:9:19
    7 │ optimizer.step()
    8 │ optimizer.zero_grad()
  ❱ 9 │ losses.append(loss)
      │               ^^^^
  help: Store `loss` without its graph: add `.detach()`, or `.item()` for a
  number.  [--fix]

Found 1 problem in 1 of 1 file; 1 fixable with `--fix`.
Explain a code: legroom explain LG101
"""
    )


def test_fix_leaves_no_findings(project: Path) -> None:
    done = lint("train.py", "--fix", folder=project)
    assert (done.returncode, done.stdout) == (0, "Fixed 1 problem. No problems found in 1 file.\n")
    assert "losses.append(loss.detach())" in (project / "train.py").read_text()
    assert lint("train.py", folder=project).stdout == "No problems found in 1 file.\n"


def test_unreadable_file_is_reported_and_others_are_checked(project: Path) -> None:
    done = lint(".", "--format", "concise", folder=project)
    assert done.returncode == 1
    assert done.stderr == "legroom: broken.py: not checked because line 2 is Python 2 code\n"
    assert done.stdout.startswith("train.py:9:19: LG101 [*] `losses` stores")
    assert "Found 1 problem in 1 of 1 file; 1 fixable with `--fix`. 1 file was not checked." in done.stdout


def test_a_cached_report_of_an_unreadable_file_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEGROOM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "wrong.py").write_text("import torch\nx = (\n")
    for _ in range(2):
        done = lint("wrong.py", folder=tmp_path)
        assert (done.returncode, done.stdout) == (2, "1 file was not checked.\n")
    assert list(tmp_path.glob("cache/**/*.json"))


def test_a_diff_with_an_unreadable_file_has_exit_code_2(project: Path) -> None:
    done = lint("broken.py", "--diff", folder=project)
    assert (done.returncode, done.stdout) == (2, "")
    assert "not checked" in done.stderr
    assert lint(".", "--diff", folder=project).returncode == 1


def test_stdout_contains_only_json(project: Path) -> None:
    (finding,) = json.loads(lint(".", "--format", "json", folder=project).stdout)
    assert list(finding) == ["code", "file", "line", "column", "message", "fix"]
    assert finding["fix"]["applicability"] == "safe"


def test_findings_are_printed_as_github_annotations(project: Path) -> None:
    line = lint("train.py", "--format", "github", folder=project).stdout
    assert line.startswith(
        "::error title=legroom LG101,file=train.py,line=9,col=19,endLine=9,endColumn=23::`losses`"
    )


def test_sarif_has_the_required_fields(project: Path) -> None:
    log = json.loads(lint("train.py", "--format", "sarif", folder=project).stdout)
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "legroom"
    (result,) = run["results"]
    assert result["message"]["text"]
    assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "LG101"
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "train.py"
    assert place["region"] == {"startLine": 9, "startColumn": 19, "endLine": 9, "endColumn": 23}
    (change,) = result["fixes"][0]["artifactChanges"]
    assert change["replacements"][0]["insertedContent"]["text"] == ".detach()"


def test_diff_does_not_change_files(project: Path) -> None:
    done = lint("train.py", "--diff", folder=project)
    assert done.returncode == 1
    assert "+    losses.append(loss.detach())\n" in done.stdout
    assert (project / "train.py").read_text() == LEAK


def test_standard_input_is_fixed_on_standard_output(project: Path) -> None:
    command = ("-m", "legroom", "lint", "-")
    done = run_python(*command, "--fix", folder=project, text=LEAK)
    assert done.stdout == LEAK.replace("(loss)", "(loss.detach())")
    assert run_python(*command, folder=project, text=LEAK).stdout.count("standard input:9:19") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "No files given. Example: `legroom lint .`"),
        (("nowhere.py",), "nowhere.py does not exist."),
        (("",), "The path is empty. Pass a file or a directory, for example `legroom lint .`"),
        (("-", "train.py"), "`-` (standard input) cannot be combined with other paths."),
        (
            (".", "--select", "E501"),
            "--select: unknown rule E501. List all rules with `legroom lint --rules`.",
        ),
    ],
)
def test_invalid_usage_is_reported_in_one_line(
    project: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    done = lint(*arguments, folder=project)
    assert (done.returncode, done.stderr) == (2, f"legroom: {sentence}\n")


def test_missing_libcst_names_the_extra(project: Path) -> None:
    program = (
        "import sys, importlib.util as u\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'libcst' else find(name, *rest)\n"
        "from legroom.cli import main\n"
        "sys.exit(main(['lint', 'train.py']))\n"
    )
    done = run_python("-c", program, folder=project)
    assert done.returncode == 2
    assert done.stderr.startswith("legroom: libcst is not installed: pip install ")


def test_rules_are_listed_without_libcst(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "sys.modules['libcst'] = None\n"
        "from legroom.cli import main\n"
        "sys.exit(main(['lint', '--rules']))\n"
    )
    listed = run_python("-c", program, folder=tmp_path).stdout
    assert "LG101  Memory grows with every step\n" in listed
    assert "LG503  DataLoader receives both a sampler and shuffle=True\n" in listed
