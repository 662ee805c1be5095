"""Every code that the source can emit has its page, and every page its code."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
CODE = re.compile(r'"(LG\d{3})"')


def codes_in_source() -> set[str]:
    return {
        code
        for file in (ROOT / "src/legroom").rglob("*.py")
        for code in CODE.findall(file.read_text(encoding="utf-8"))
    }


def test_codes_and_pages_agree():
    assert {page.stem for page in (ROOT / "docs/codes").glob("*.md")} == codes_in_source()


def test_every_page_is_titled_with_its_code():
    for page in (ROOT / "docs/codes").glob("*.md"):
        assert page.read_text(encoding="utf-8").startswith(f"# {page.stem}: ")
