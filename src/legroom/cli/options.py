"""Options that several verbs share, and what their values mean."""

from enum import StrEnum
from typing import Annotated, Any

import typer
import typer.core


class Command(typer.core.TyperCommand):
    """A command whose help says what its arguments are; typer would add how Python calls it (`<list[str]>`)."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for parameter in self.get_params(ctx):
            if isinstance(parameter, typer.core.TyperArgument):
                vars(parameter)["display_type_rich"] = _no_type  # older versions of typer never ask
        super().format_options(ctx, formatter)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """`SCRIPT [ARGS]...` says already that there may be several."""
        pieces = super().collect_usage_pieces(ctx)
        return [piece[1:-4] if piece.endswith("...]...") else piece for piece in pieces]


def _no_type(ctx: Any) -> None:
    return None


class Format(StrEnum):
    """How a verb answers."""

    TEXT = "text"
    JSON = "json"


FormatOption = Annotated[Format, typer.Option("--format", help="text for people, json for programs.")]


ScriptWords = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SCRIPT [ARGS]...",
        help="The script; everything after it is the script's own.",
        show_default=False,
    ),
]
ModuleOption = Annotated[
    str | None,
    typer.Option("-m", metavar="MODULE", help="A module instead, as python -m runs it.", show_default=False),
]
