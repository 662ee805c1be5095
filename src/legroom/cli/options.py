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


def parse_gpus(text: str) -> list[int]:
    """`8GiB` or `8GiB,8GiB` as bytes, one per GPU."""
    return [parse_size(part) for part in text.split(",")]
