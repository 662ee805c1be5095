"""`legroom run`: runs a script like `python` does and reports its memory use."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from legroom.cli.options import (
    WITHOUT_VALUE,
    Format,
    FormatOption,
    ModuleOption,
    ScriptArguments,
    VerboseOption,
    script_to_run,
)
from legroom.errors import OutputError, UsageError
from legroom.gpus.catalog import parse_gpus
from legroom.memory.capture.capture import check_output
from legroom.units import is_size, parse_size

if TYPE_CHECKING:
    from legroom.run.recording import Recording


def run(
    context: typer.Context,
    script: ScriptArguments = None,
    module: ModuleOption = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            metavar="NAME|SIZE[,...]",
            help="Run on a virtual GPU: a size such as 8GiB, or a name such as rtx4090. Pass several values to create several GPUs.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Path to the capture file.",
            show_default="SCRIPT.legroom",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing capture file.")] = False,
    spill: Annotated[
        str | None,
        typer.Option(
            "--spill",
            metavar="[=SIZE]",
            help="Move saved activations to host memory, up to SIZE. The script needs less GPU memory but "
            "runs slower. Gradients stay the same.",
            show_default=False,
        ),
    ] = None,
    blocking: Annotated[
        bool,
        typer.Option(
            "--blocking",
            help="Synchronize after every CUDA operation and check indices, so that a device-side assert shows "
            "the line that caused it. The script runs slowly.",
        ),
    ] = False,
    log: Annotated[
        str | None,
        typer.Option(
            "--log",
            metavar="tensorboard|wandb",
            help="Log the memory use of each step, and attach the report. `tensorboard:DIR` sets the directory.",
            show_default=False,
        ),
    ] = None,
    verbose: VerboseOption = False,
    format: FormatOption = Format.TEXT,
) -> int:
    """Run SCRIPT like python does, and record its memory use.

    The report shows the peak, with the lines and variables that used the memory. After an out-of-memory error, the
    report also shows what to change.

    The exit code is that of the script.
    """
    if output is not None:
        check_output(output, force=force)
    gpus = parse_gpus(gpu) if gpu is not None else None
    budget = parse_size(spill) if spill not in (None, WITHOUT_VALUE) else None
    target = script_to_run("legroom run", script, module)
    if spill == WITHOUT_VALUE and is_size(target.name) and not Path(target.name).exists():
        raise UsageError(
            f"Use `--spill={target.name}`. Without `=`, Legroom treats `{target.name}` as the script to run."
        )

    if format == Format.JSON and sys.stdout is None:
        raise OutputError.from_error()
    target.check()
    if log is not None:
        from legroom.run.memory_log import check_log

        check_log(log)
    syntax_error = target.syntax_error() if format == Format.TEXT else None
    if syntax_error is not None:
        from legroom.show.report.tracebacks import format_traceback

        sys.stderr.write(format_traceback(syntax_error))
        return 1

    if blocking:
        os.environ["CUDA_LAUNCH_BLOCKING"] = "1"  # CUDA reads the variable when it starts

    def make_recording() -> "Recording":
        from legroom.run.recording import Recording  # imports torch
        from legroom.train.spilling.spill import Spill

        return Recording(
            target,
            gpus=gpus,
            output=output,
            force=force,
            as_json=format == Format.JSON,
            options=[
                *(["--gpu", gpu] if gpu is not None else []),
                *([] if spill is None else ["--spill" if spill == WITHOUT_VALUE else f"--spill={spill}"]),
                *(["--blocking"] if blocking else []),
                *(["--log", log] if log is not None else []),
            ],
            spill=Spill(budget) if spill is not None else None,
            blocking=blocking,
            verbose=verbose,
            log=log,
        )

    def start_recording() -> "Recording":
        recording = make_recording()
        recording.start()
        return recording

    # A virtual GPU also applies to the processes that the script starts, so it is created before the script runs.
    if gpus is None and format == Format.TEXT and "torch" not in sys.modules:
        from legroom.run.without_torch import may_use_torch, run_until_torch

        if not may_use_torch(target):
            return run_until_torch(target, start_recording, at_exit=context.obj)
    return make_recording().run(at_exit=context.obj)
