"""Options that several verbs share, and what their values mean."""

from enum import StrEnum
from typing import Annotated

import typer

from legroom.observe.gpus import GPUS, find_gpu


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
    """`8GiB`, `8GiB,8GiB` or `rtx4090` as bytes for PyTorch, one per GPU.

    A size is what PyTorch may use; of a GPU by name, the CUDA context takes its part first.
    """
    gpus = [find_gpu(part.strip()) for part in text.split(",")]
    return [gpu.memory - gpu.context if gpu in GPUS else gpu.memory for gpu in gpus]
