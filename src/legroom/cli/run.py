"""`legroom run`: run a script as `python` would, watch its memory, and say at the end what happened."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from legroom.cli.options import Command, Format, FormatOption, ModuleOption, ScriptWords
from legroom.errors import UsageError
from legroom.gpus.catalog import parse_gpus
from legroom.units import is_size, parse_size


def run(
    context: typer.Context,
    script: ScriptWords = None,
    module: ModuleOption = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            metavar="NAME|SIZE[,...]",
            help="Serve cuda from a virtual GPU: a size such as 8GiB, or a name such as rtx4090; several make several GPUs.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Where the capture goes.",
            show_default="SCRIPT.legroom, numbered",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing capture.")] = False,
    spill: Annotated[
        str | None,
        typer.Option(
            "--spill",
            metavar="[=SIZE]",
            help="Keep saved activations in host memory, at most SIZE of it: slower, less GPU memory, the same gradients.",
            show_default=False,
        ),
    ] = None,
    blocking: Annotated[
        bool,
        typer.Option(
            "--blocking",
            help="Wait for each operation on the GPU and check its indices first: a device-side assert stops at its true line. Slow.",
        ),
    ] = False,
    format: FormatOption = Format.TEXT,
) -> int:
    """Run SCRIPT as python would, watch its memory and record it.

    Ends with the peak, when and where it was, and who held the memory; after an out-of-memory error, with what to
    change. The exit code is the script's own.
    """
    gpus = parse_gpus(gpu) if gpu is not None else None
    budget = parse_size(spill) if spill not in (None, ALL) else None
    words = list(script or ())
    if module is None and not words:
        raise UsageError("which script? write legroom run train.py, or legroom run -m package.module")

    if spill == ALL and words and is_size(words[0]) and not Path(words[0]).exists():
        raise UsageError(
            f"write --spill={words[0]}, with the sign: without it, {words[0]} is taken for the script"
        )

    if blocking:
        os.environ["CUDA_LAUNCH_BLOCKING"] = "1"  # CUDA reads it when it starts

    from legroom.observe.script import Script
    from legroom.run.recording import Recording  # torch and the rest, only now
    from legroom.train.spilling.spill import Spill

    target = (
        Script(module, tuple(words), is_module=True)
        if module is not None
        else Script(words[0], tuple(words[1:]))
    )
    recording = Recording(
        target,
        gpus=gpus,
        output=output,
        force=force,
        as_json=format == Format.JSON,
        options=[
            *(["--gpu", gpu] if gpu is not None else []),
            *([] if spill is None else ["--spill" if spill == ALL else f"--spill={spill}"]),
            *(["--blocking"] if blocking else []),
        ],
        spill=Spill(budget) if spill is not None else None,
        blocking=blocking,
    )
    return recording.run(at_exit=context.obj)


ALL = "all"
"""What `--spill` means without a size."""


class ScriptCommand(Command):
    """A command whose own options end where the script begins; for click that needs help with `-m module`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, end_options_after_module(spill_everything(args)))


_TAKES_VALUE = (
    "--gpu", "-o", "--output", "--format", "--batch-size", "--steps", "--multiple-of",
    "--nproc", "--strategy", "--nodes", "--rendezvous", "--wait", "--max-restarts", "--engine", "--logs",
)  # fmt: skip


def end_options_after_module(args: list[str]) -> list[str]:
    """Put `--` after `-m module`, so that what follows is the module's own."""
    for position in _own_options(args):
        word = args[position]
        if word == "-m":
            return [*args[: position + 2], "--", *args[position + 2 :]]
        if word.startswith("-m") and not word.startswith("--"):
            return [*args[: position + 1], "--", *args[position + 1 :]]
    return args


def spill_everything(args: list[str]) -> list[str]:
    """Give a bare `--spill` its value: the word after it is the script."""
    bare = {position for position in _own_options(args) if args[position] == "--spill"}
    return [f"{word}={ALL}" if position in bare else word for position, word in enumerate(args)]


def _own_options(args: list[str]) -> Iterator[int]:
    """Where Legroom's options stand; the script, or the module that takes its place, ends them."""
    position = 0
    while position < len(args):
        word = args[position]
        if not word.startswith("-") or word == "--":
            return
        yield position
        if word.startswith("-m"):
            return
        position += 2 if word in _TAKES_VALUE else 1
