"""MkDocs hooks: adds the parts of the site that are generated from the program, so that they cannot differ from it.

- The page of a command ends with its arguments and options.
- `api.md` ends with the signature and docstring of each public name.
- `codes/index.md` lists all codes.
- The page of a recipe ends with its programs.

Links to files outside docs/ become links to the repository. Without `repo_url`, only their text remains.
"""

import inspect
import posixpath
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

import typer.main

import legroom
from legroom.cli import app
from legroom.diagnose.codes import all_pages

RECIPES = Path(__file__).parents[1] / "examples/recipes"
OUTSIDE = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+(?:bench|examples|src|tests)/[^)]+|(?:\.\./)+\w+\.md)\)")


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    files.append(File.generated(config, "codes/index.md", content=codes_index()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    path = page.file.src_uri
    name = path.removesuffix(".md")
    if name in command_names():
        markdown += f"\n## All options\n{options_of(name)}"
    if path == "api.md":
        markdown += "".join(map(api_entry, public_names()))
    if path.startswith("recipes/"):
        markdown += programs_of(posixpath.basename(name))
    markdown = markdown.replace("](codes/)", "](codes/index.md)")
    return OUTSIDE.sub(lambda link: _outside_link(link, path, config.repo_url), markdown)


def _outside_link(link: re.Match[str], page: str, repository: str) -> str:
    text, target = link.groups()
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
    if not path.startswith("docs/"):
        return f"[{text}]({repository}/blob/main/{path})" if repository else text
    return link[0]


def command_names() -> list[str]:
    return [str(command.name) for command in app.registered_commands]


def options_of(name: str) -> str:
    """Return the usage of a command, and tables of its arguments and options, with the words of its `--help`."""
    group: Any = typer.main.get_command(app)
    command = group.commands[name]
    context = command.make_context(name, [], resilient_parsing=True)
    tables = _Tables()
    command.format_options(context, tables)
    usage = " ".join(["legroom", name, *command.collect_usage_pieces(context)])
    return f"```\n{usage}\n```\n{tables.text}"


class _Tables:
    """Receives the sections of a command's help, like click's formatter, and writes them as Markdown tables."""

    def __init__(self) -> None:
        self.text = ""

    @contextmanager
    def section(self, title: str) -> Iterator[None]:
        self.text += f"\n| {title} | |\n|---|---|\n"
        yield

    def write_dl(self, records: list[tuple[str, str]]) -> None:
        for words, help in records:
            self.text += f"| <code>{_cell(escape(words))}</code> | {_cell(help)} |\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "&#124;")


def public_names() -> list[str]:
    return [name for name in legroom.__all__ if not name.startswith("_")]


def api_entry(name: str) -> str:
    """Return the section of a public name: its signature, its docstring and its public methods."""
    thing = getattr(legroom, name)
    if inspect.ismodule(thing):
        functions = [f"{name}.{each}" for each in getattr(thing, "__all__", _functions_of(thing))]
        members = [_described(each, getattr(thing, each.partition(".")[2])) for each in functions]
        return f"\n## `legroom.{name}`\n{inspect.getdoc(thing)}\n" + "".join(members)
    text = f"\n## `legroom.{name}`\n{_code(f'legroom.{name}', thing)}\n{inspect.getdoc(thing) or ''}\n"
    if inspect.isclass(thing):
        for member, value in vars(thing).items():
            if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
                text += _described(f"{name}.{member}", value)
    return text


def _functions_of(module: Any) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    ]


def _described(name: str, thing: Any) -> str:
    code = "" if isinstance(thing, property) else _code(name, thing)
    return f"\n### `{name}`\n{code}\n{inspect.getdoc(thing) or ''}\n"


def _code(name: str, thing: Any) -> str:
    signature = inspect.signature(thing)
    parameters = [one for one in signature.parameters.values() if one.name != "self"]
    short = signature.replace(
        parameters=[one.replace(annotation=inspect.Parameter.empty) for one in parameters],
        return_annotation=inspect.Signature.empty,
    )
    return f"```python\n{name}{short}\n```\n"


def programs_of(recipe: str) -> str:
    """Return the code of the programs of a recipe."""
    files = [RECIPES / recipe / f"{program}.py" for program in ("original", "improved")]
    codes = [
        f"\n## {file.name}\n```python\n{file.read_text(encoding='utf-8')}```\n"
        for file in files
        if file.exists()
    ]
    return "".join(codes)


def codes_index() -> str:
    titles = [(code, page.title) for code, page in all_pages().items()]
    lines = ["# Codes", "", "Findings have a code. `legroom explain LG101` prints the page of a code.", ""]
    lines += ["| code | finding |", "|---|---|"]
    lines += [f"| [{code}]({code}.md) | {_cell(title)} |" for code, title in titles]
    return "\n".join(lines) + "\n"
