"""The codes that Legroom can report, such as `LG101`, and the pages that explain them.

The source of a page is the docstring of the lint rule's module, or a section of a Markdown file in `code_pages`. For
example, `LG7xx.md` contains the pages of LG700 to LG799. Legroom reads the docstring without importing the module, so
reading a page does not require libcst. This command generates `docs/codes` from these sources:

    python -m legroom.diagnose.codes docs/codes
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from legroom.errors import UsageError

_RULES = Path(__file__).parent / "lint" / "rules"
_PAGES = Path(__file__).parent / "code_pages"
_HEADING = re.compile(r"(?:# )?(LG\d{3}): (.+)")
_NEXT_PAGE = re.compile(r"\n(?=# LG\d{3}: )")

KINDS = {
    "1": "retention",
    "2": "inference",
    "3": "transfer and loading",
    "4": "precision",
    "5": "distributed",
    "6": "fit",
    "7": "errors explained",
    "9": "environment",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CodePage:
    """The page of one code."""

    code: str
    title: str
    """The title of the page, without a final period, for example `Memory grows with every step`."""
    body: str
    is_lint_rule: bool

    @property
    def kind(self) -> str:
        return KINDS.get(self.code[2], "other")

    @property
    def is_optional(self) -> bool:
        """True if the rule is disabled by default, because it gives advice on code that works."""
        return self.is_lint_rule and "This rule is off by default" in self.body

    @property
    def markdown(self) -> str:
        return f"# {self.code}: {self.title}\n\n{self.body}\n"


def find_page(code: str) -> CodePage:
    page = all_pages().get(code.strip().upper())
    if page is None:
        raise UsageError(f"Unknown code {code}. Codes range from LG101 to {max(all_pages())}.")
    return page


def translated_page(code: str, language: str) -> CodePage | None:
    return _translated_pages(language).get(code)


@cache
def _translated_pages(language: str) -> dict[str, CodePage]:
    return {page.code: page for page in _markdown_pages(_PAGES / language)}


@cache
def all_pages() -> dict[str, CodePage]:
    pages = [*_rule_pages(), *_markdown_pages(_PAGES)]
    return {page.code: page for page in sorted(pages, key=lambda page: page.code)}


def write_pages(folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    changed = []
    for old in folder.glob("LG*.md"):
        if old.stem not in all_pages():
            old.unlink()
            changed.append(old)
    for page in all_pages().values():
        file = folder / f"{page.code}.md"
        if not file.exists() or file.read_text(encoding="utf-8") != page.markdown:
            file.write_text(page.markdown, encoding="utf-8")
            changed.append(file)
    return changed


def _rule_pages() -> Iterator[CodePage]:
    for file in sorted(_RULES.glob("*/*.py")):
        text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        if _HEADING.match(text):
            yield _page(text, is_lint_rule=True)


def _markdown_pages(folder: Path) -> Iterator[CodePage]:
    for file in sorted(folder.glob("LG*.md")):
        for text in _NEXT_PAGE.split(file.read_text(encoding="utf-8")):
            yield _page(text, is_lint_rule=False)


def _page(text: str, *, is_lint_rule: bool) -> CodePage:
    first, _, rest = text.partition("\n")
    heading = _HEADING.fullmatch(first.strip())
    assert heading, f"a page must start with its code and title, not with {first!r}"
    return CodePage(code=heading[1], title=heading[2].strip(), body=rest.strip(), is_lint_rule=is_lint_rule)


if __name__ == "__main__":
    for path in write_pages(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/codes")):
        print(path)
