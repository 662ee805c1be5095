"""Every code has one page, from one source, and the documentation shows that same page."""

import re
from pathlib import Path

import pytest

from legroom.diagnose.codes import KINDS, all_pages, find_page, write_pages
from legroom.errors import UsageError

ROOT = Path(__file__).parents[3]
CODE = re.compile(r'"(LG\d{3})"')


def codes_in_source() -> set[str]:
    return {
        code
        for file in (ROOT / "src/legroom").rglob("*.py")
        for code in CODE.findall(file.read_text(encoding="utf-8"))
    }


def test_every_code_that_the_source_names_has_a_page_and_every_page_its_code() -> None:
    assert set(all_pages()) == codes_in_source()


def test_the_documentation_is_what_the_registry_says() -> None:
    """To fix a failure, run `python -m legroom.diagnose.codes docs/codes`."""
    documented = {page.stem: page.read_text(encoding="utf-8") for page in (ROOT / "docs/codes").glob("*.md")}
    assert documented == {code: page.markdown for code, page in all_pages().items()}


def test_no_code_has_two_pages() -> None:
    written = {file.stem for file in (ROOT / "src/legroom/diagnose/code_pages").glob("*.md")}
    assert not written & {code for code, page in all_pages().items() if page.is_lint_rule}


def test_every_page_has_a_title_and_a_kind_and_those_of_rules_show_what_to_write() -> None:
    for page in all_pages().values():
        assert page.title
        assert page.kind in KINDS.values()
        assert not page.is_lint_rule or "\n## Use instead\n" in page.body, page.code


def test_a_page_is_found_in_any_case() -> None:
    assert find_page(" lg101 ").title == "Memory grows with every step"


def test_an_unknown_code_is_refused_with_what_exists() -> None:
    with pytest.raises(UsageError, match="there is no code LG999: codes go from LG101 to"):
        find_page("LG999")


def test_writing_pages_removes_those_of_codes_that_are_no_more(tmp_path: Path) -> None:
    (tmp_path / "LG999.md").write_text("# LG999: Gone\n")
    write_pages(tmp_path)
    assert {file.stem for file in tmp_path.iterdir()} == set(all_pages())
    assert write_pages(tmp_path) == []
