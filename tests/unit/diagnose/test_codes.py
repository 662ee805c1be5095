"""Every code has exactly one page, and docs/codes contains the same pages."""

import re
from pathlib import Path

import pytest

from legroom.diagnose.codes import KINDS, all_pages, find_page, write_pages
from legroom.errors import UsageError

ROOT = Path(__file__).parents[3]
HEADING = re.compile(r"^# (LG\d{3}): ", re.MULTILINE)
CODE = re.compile(r'"(LG\d{3})"')


def codes_in_source() -> set[str]:
    return {
        code
        for file in (ROOT / "src/legroom").rglob("*.py")
        for code in CODE.findall(file.read_text(encoding="utf-8"))
    }


def test_codes_in_the_source_match_the_pages() -> None:
    assert set(all_pages()) == codes_in_source()


def test_docs_match_the_pages() -> None:
    """To fix a failure, run `python -m legroom.diagnose.codes docs/codes`."""
    documented = {page.stem: page.read_text(encoding="utf-8") for page in (ROOT / "docs/codes").glob("*.md")}
    assert documented == {code: page.markdown for code, page in all_pages().items()}


def test_no_code_has_two_pages() -> None:
    files = (ROOT / "src/legroom/diagnose/code_pages").glob("*.md")
    written = [code for file in files for code in HEADING.findall(file.read_text(encoding="utf-8"))]
    rules = [code for code, page in all_pages().items() if page.is_lint_rule]
    assert sorted(written + rules) == sorted(all_pages())


def test_each_page_is_in_the_file_of_its_hundred_codes() -> None:
    for file in (ROOT / "src/legroom/diagnose/code_pages").rglob("*.md"):
        text = file.read_text(encoding="utf-8")
        assert text.startswith("# LG")
        assert {f"{code[:3]}xx" for code in HEADING.findall(text)} == {file.stem}


def test_every_page_has_a_title_and_a_kind_and_rules_show_a_fix() -> None:
    for page in all_pages().values():
        assert page.title
        assert page.kind in KINDS.values()
        assert not page.is_lint_rule or "\n## Use instead\n" in page.body, page.code


def test_code_is_case_insensitive() -> None:
    assert find_page(" lg101 ").title == "Memory grows with every step"


def test_unknown_code_is_rejected() -> None:
    with pytest.raises(UsageError, match="Unknown code LG999. Codes range from LG101 to"):
        find_page("LG999")


def test_write_pages_removes_obsolete_pages(tmp_path: Path) -> None:
    (tmp_path / "LG999.md").write_text("# LG999: Gone\n")
    write_pages(tmp_path)
    assert {file.stem for file in tmp_path.iterdir()} == set(all_pages())
    assert write_pages(tmp_path) == []
