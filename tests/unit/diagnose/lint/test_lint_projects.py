"""The linter reads the other files of a project."""

import re
from pathlib import Path

import pytest

from legroom.diagnose.lint.engine import lint_paths
from legroom.diagnose.lint.project import callers

_TEXT = (Path(__file__).parents[3] / "data" / "lint_rules" / "projects.txt").read_text(encoding="utf-8")
_CASES = {
    title: dict(zip(files[::2], files[1::2], strict=True))
    for title, body in re.findall(r"^### ([^\n]+)\n(.*?)(?=^### |\Z)", _TEXT, re.M | re.S)
    for files in [re.split(r"^--- (\S+)\n", body, flags=re.M)[1:]]
}
METER = _CASES["a meter in another file sums losses with their graph"]


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def _found(folder: Path) -> set[tuple[str, str, int | None]]:
    findings = lint_paths([str(folder)]).findings
    return {(each.code, str(Path(each.file or "").relative_to(folder)), each.line) for each in findings}


@pytest.mark.parametrize("title", _CASES)
def test_findings_of_a_project(title: str, tmp_path: Path) -> None:
    _write(tmp_path, _CASES[title])
    expected = {
        (found[1], name, number)
        for name, text in _CASES[title].items()
        for number, line in enumerate(text.splitlines(), 1)
        if (found := re.search(r"# here (LG\d+)", line))
    }
    assert _found(tmp_path) == expected


def test_single_file_is_checked_with_its_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path, METER)
    monkeypatch.chdir(tmp_path)
    assert [each.line for each in lint_paths(["train.py"]).findings] == [12]


def test_problem_in_imported_function_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEGROOM_CACHE", str(tmp_path / "cache"))
    files = _CASES["a base class in another file accumulates the result of the step"]
    _write(tmp_path, {**files, "scripts/again.py": "import sys\n" + files["train.py"]})
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # the second report is from the cache
        (finding,) = lint_paths(["scripts", "train.py"]).findings
        assert (finding.file, finding.line) == ("loop.py", 14)
        assert (14, "            total += self.training_step(batch)  # here LG101") in finding.source


def test_ignore_comment_in_the_imported_file(tmp_path: Path) -> None:
    files = _CASES["a base class in another file accumulates the result of the step"]
    _write(tmp_path, {name: text.replace("# here", "# legroom: ignore") for name, text in files.items()})
    assert not _found(tmp_path)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder. Reports are cached in another folder."""
    monkeypatch.setenv("LEGROOM_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def test_cached_report_is_not_used_if_an_imported_file_changes(project: Path) -> None:
    _write(project, METER)
    assert len(_found(project)) == 1
    assert len(_found(project)) == 1
    (project / "utils.py").write_text(METER["utils.py"].replace("value * n", "float(value) * n"))
    assert not _found(project)
    (project / "utils.py").unlink()
    assert not _found(project)
    _write(project, METER)
    assert len(_found(project)) == 1


def test_cached_report_is_not_used_if_a_caller_changes(project: Path) -> None:
    files = _CASES["every caller in another file disables gradients"]
    _write(project, files)
    assert not _found(project)
    (project / "test.py").write_text(files["test.py"].replace("@torch.inference_mode()\n", ""))
    assert {code for code, _, _ in _found(project)} == {"LG201"}


def test_fix_does_not_change_the_imported_file(tmp_path: Path) -> None:
    _write(tmp_path, METER)
    report = lint_paths([str(tmp_path)], fix=True, unsafe=True)
    assert report.fixed == 1
    assert (tmp_path / "utils.py").read_text() == METER["utils.py"]
    assert "losses.update(loss.detach())" in (tmp_path / "train.py").read_text()


def test_cyclic_imports_end(tmp_path: Path) -> None:
    _write(
        tmp_path,
        {
            "a.py": "import torch\nfrom b import *\nfor x in loader:\n    run(torch.ones(1))\n",
            "b.py": "from a import *\n",
        },
    )
    assert not _found(tmp_path)


def test_setup_file_in_a_subfolder_is_not_the_root_of_the_repository(tmp_path: Path) -> None:
    files = _CASES["every caller in another file disables gradients"]
    _write(
        tmp_path,
        {
            ".git/config": "",
            "ops/setup.py": "",
            "ops/engine.py": files["engine.py"],
            "train.py": files["train.py"].replace("from engine", "from ops.engine"),
            "ops/__init__.py": "",
        },
    )
    assert not _found(tmp_path)


def test_huge_folder_is_not_searched_for_callers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = _CASES["every caller in another file disables gradients"]
    _write(tmp_path, files)
    for number in range(30):
        (tmp_path / f"image{number}.png").touch()
    assert not _found(tmp_path)
    monkeypatch.setattr(callers, "_MAX_ENTRIES", 20)
    assert {code for code, _, _ in _found(tmp_path)} == {"LG201"}
