"""The documentation site: its navigation is complete, links resolve, and generated parts match the program."""

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import legroom
from legroom.cli import app, main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
COMMANDS = sorted(str(command.name) for command in app.registered_commands)
GENERATED = {"codes/index.md"}
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("README*.md"), ROOT / "CONTRIBUTING.md"])
LINK = re.compile(r"\]\(([^)\s]+)\)")


def navigation() -> list[str]:
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    return re.findall(r"(\S+\.md)$", nav, re.M)


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of the headings, in the format of GitHub and MkDocs."""
    headings = re.findall(r"^#+ (.+)$", without_code(page.read_text(encoding="utf-8")), re.M)
    slugs = (re.sub(r"[^\w\s-]", "", heading.lower()) for heading in headings)
    return {re.sub(r"[\s]+", "-", slug.strip()) for slug in slugs}


def broken_links(page: Path) -> Iterator[str]:
    for link in LINK.findall(without_code(page.read_text(encoding="utf-8"))):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if "://" in link:
            continue
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors_of(target)):
            yield f"{page.relative_to(ROOT)}: {link}"


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_hooks", DOCS / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_of_the_navigation_exists() -> None:
    assert [path for path in navigation() if path not in GENERATED and not (DOCS / path).exists()] == []


def test_every_page_is_in_the_navigation() -> None:
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert {page for page in pages if not page.startswith("codes/LG")} == {*navigation()} - GENERATED


def test_links_and_anchors_resolve() -> None:
    assert [link for page in PAGES for link in broken_links(page)] == []


def test_the_korean_readme_has_the_links_and_commands_of_the_english_readme() -> None:
    english, korean = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.ko.md"))
    only_english = {"README.ko.md", "docs/images/oom.svg"}  # the Korean page has Korean output as text
    assert set(LINK.findall(english)) - only_english == set(LINK.findall(korean)) - {"README.md"}
    for start in ("legroom ", "import ", "make ", "guard = ", "result"):
        lines = [
            [line.split("  #")[0].rstrip() for line in text.splitlines() if line.startswith(start)]
            for text in (english, korean)
        ]
        assert lines[0] == lines[1]


def test_a_broken_link_or_anchor_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("# A `title`\n[good](#a-title) [bad](#other) [gone](gone.md)\n```\n[code](x.md)\n```\n")
    assert list(broken_links(page)) == ["page.md: #other", "page.md: gone.md"]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_of_a_command_lists_the_options_of_its_help(
    command: str, hooks: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"{command}.md" in navigation()
    assert main([command, "--help"]) == 0
    options = re.findall(r"^  (--?[\w-]+)", capsys.readouterr().out, re.M)
    generated = hooks.options_of(command)
    assert options
    assert [option for option in options if option not in generated] == []


def test_the_api_reference_describes_every_public_name(hooks: ModuleType) -> None:
    assert {*hooks.public_names(), "__version__"} == set(legroom.__all__)
    assert "legroom.watch(" in hooks.api_entry("watch")


def test_the_list_of_codes_links_to_every_page(hooks: ModuleType) -> None:
    codes = {page.name for page in (DOCS / "codes").glob("LG*.md")}
    assert set(LINK.findall(hooks.codes_index())) == codes


def test_the_page_of_a_recipe_ends_with_its_programs(hooks: ModuleType) -> None:
    program = (ROOT / "examples/recipes/empty_cache/improved.py").read_text()
    assert program in hooks.programs_of("empty_cache")
    assert hooks.programs_of("index") == ""


def test_links_to_other_folders_lead_to_the_repository(hooks: ModuleType) -> None:
    def converted(link: str, page: str, repository: str) -> str:
        return hooks.OUTSIDE.sub(lambda found: hooks._outside_link(found, page, repository), link)

    url = "https://host/legroom"
    assert converted("[x](../bench/a.md)", "run.md", url) == f"[x]({url}/blob/main/bench/a.md)"
    assert converted("[x](../bench/a.md)", "run.md", "") == "x"
    assert converted("[x](../run.md)", "guides/tuning.md", url) == "[x](../run.md)"
