"""Options that several commands share, and the command classes that parse them."""

import re
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from legroom.errors import OutputError, UsageError

if TYPE_CHECKING:
    from legroom.memory.capture.capture import Capture
    from legroom.observe.script import Script


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


FormatOption = Annotated[
    Format, typer.Option("--format", help="Output format. `--json` is short for `--format json`.")
]
HtmlOption = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="PAGE",
        help="Write a web page: a single file that works offline.",
        show_default=False,
    ),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite an existing page.")]
OpenOption = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", help="Print the complete report instead of a one-screen summary.")
]
ScriptArguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="SCRIPT [ARGS]...", help="The script and its arguments.", show_default=False),
]
ModuleOption = Annotated[
    str | None,
    typer.Option(
        "-m",
        metavar="MODULE",
        help="Run a module instead of a script, like python -m.",
        show_default=False,
    ),
]
WITHOUT_VALUE = "all"
"""The value of an option such as `--spill[=SIZE]` if the user gives the option without a value."""


def script_to_run(command: str, arguments: list[str] | None, module: str | None) -> "Script":
    from legroom.observe.script import Script

    words = tuple(arguments or ())
    if module is not None:
        return Script(module, words, is_module=True)
    if not words:
        raise UsageError(f"No script given. Example: `{command} train.py`.")
    return Script(words[0], words[1:])


def _is_pickle(path: Path) -> bool:
    """Return True if the first byte of a file is that of a pickle."""
    try:
        with open(path, "rb") as file:
            return file.read(1) == b"\x80"
    except OSError:
        return False


def read_recording(path: Path) -> "Capture":
    from legroom.memory.capture.capture import read_capture

    if not _is_pickle(path):
        return read_capture(path)
    from legroom.observe.cuda.snapshot_file import read_snapshot  # imports torch

    return read_snapshot(path)


class Command(typer.core.TyperCommand):
    """A command that accepts `--json` as a short form of `--format json`.

    Its help is shorter than typer's: `[default: 2]` instead of `[default: (2); x>=1]`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self.expand(ctx, args))

    def expand(self, ctx: Any, args: list[str]) -> list[str]:
        return list(map(_full_form, args))

    def get_help(self, ctx: Any) -> str:
        if sys.stdout is None:  # click would print nothing
            raise OutputError.from_error()
        return super().get_help(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        arguments: list[tuple[str, str]] = []
        options: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            is_argument = isinstance(parameter, typer.core.TyperArgument)
            if is_argument:
                vars(parameter)["display_type_rich"] = _no_type  # ignored by older versions of typer
            record = parameter.get_help_record(ctx)
            if record is not None:
                name, text = record
                (arguments if is_argument else options).append((name, _EXTRA.sub(_short_default, text)))
        for title, records in (("Arguments", arguments), ("Options", options)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the usage without the `...` that click adds to `SCRIPT [ARGS]...`, and without the braces
        around `{FILE}`.
        """
        pieces = super().collect_usage_pieces(ctx)
        return [piece[1:-4] if piece.endswith("...]...") else piece.strip("{}") for piece in pieces]


def _full_form(word: str) -> str:
    return "--format=json" if word == "--json" else word


_EXTRA = re.compile(r"  \[(?:default: (?P<default>[^\]]*?))?(?:; )?(?:x>=\d+|required)?\]$")
"""Matches the text that click appends to the help of an option: the default value and the range of valid values."""


def _short_default(extra: re.Match[str]) -> str:
    default = extra["default"]
    return f"  [default: {default.removeprefix('(').removesuffix(')')}]" if default else ""


def _no_type(ctx: Any) -> None:
    """Return no type, so that the help omits the Python type of an argument (`<list[str]>`)."""


class ScriptCommand(Command):
    """A command that runs a script or a module (`-m MODULE`).

    All arguments after the script or after `-m MODULE` are passed to the script, even if they look like command
    options. Click's setting `allow_interspersed_args` has this effect after a script, but not after `-m MODULE`.
    Click also does not support an option with an optional value directly before a positional argument
    (`--spill train.py`).
    """

    def expand(self, ctx: Any, args: list[str]) -> list[str]:
        options = {
            name: option
            for option in self.get_params(ctx)
            if isinstance(option, typer.core.TyperOption)
            for name in option.opts
        }
        marked: list[str] = []
        position = 0
        while position < len(args):
            word = _full_form(args[position])
            if not word.startswith("-") or word == "--":
                break
            option = options.get(word)
            is_module = word.startswith("-m")
            if option is not None and _has_optional_value(option):
                marked.append(f"{word}={WITHOUT_VALUE}")
                position += 1
            else:
                length = 2 if option is not None and not option.is_flag else 1
                marked += [word, *args[position + 1 : position + length]]
                position += length
            if is_module:
                marked.append("--")
                break
        return marked + args[position:]


def _has_optional_value(option: typer.core.TyperOption) -> bool:
    return (option.metavar or "").startswith("[=")
