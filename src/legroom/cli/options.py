"""Options that several verbs share, and what their values mean."""

from enum import StrEnum
from typing import Annotated

import typer

from legroom.units import parse_size


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


def parse_gpus(text: str) -> list[int]:
    """`8GiB` or `8GiB,8GiB` as bytes, one per GPU."""
    return [parse_size(part) for part in text.split(",")]
