"""The parts of a release are consistent: version, changelog, citation and workflows."""

import re
from pathlib import Path

import pytest

import legroom
from legroom.cli import app, main

ROOT = Path(__file__).parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"


def test_the_changelog_starts_with_this_version() -> None:
    assert re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)[0] == legroom.__version__


def test_the_citation_names_this_version() -> None:
    assert f"\nversion: {legroom.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_workflow_runs_the_quick_tests_of_the_makefile() -> None:
    quick = re.search(r"^QUICK := (.+)$", (ROOT / "Makefile").read_text(), re.M)
    assert quick is not None
    assert f"QUICK: -n 2 -q {quick[1]}\n" in (WORKFLOWS / "tests.yml").read_text()


@pytest.mark.parametrize("workflow", ["tests", "docs", "publish"])
def test_workflows_run_existing_targets_of_the_makefile(workflow: str) -> None:
    targets = set(re.findall(r"^(\w[\w-]*):(?!=)", (ROOT / "Makefile").read_text(), re.M))
    run = re.findall(r"run: make (.+)$", (WORKFLOWS / f"{workflow}.yml").read_text(), re.M)
    assert run
    assert {word for words in run for word in words.split()} <= targets


def test_the_bug_report_template_requests_the_output_of_doctor() -> None:
    assert "`legroom doctor --json`" in (ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text()


def test_shell_completion_lists_the_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_LEGROOM_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "legroom ")
    monkeypatch.setenv("COMP_CWORD", "1")
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 0
    assert set(capsys.readouterr().out.split()) >= {str(one.name) for one in app.registered_commands}
