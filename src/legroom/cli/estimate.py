"""`legroom estimate`: predicts whether a script fits on a GPU, and the largest batch size that fits."""

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from legroom.cli.options import (
    Format,
    FormatOption,
    ModuleOption,
    ScriptArguments,
    VerboseOption,
    script_to_run,
)
from legroom.errors import UsageError
from legroom.log import say

if TYPE_CHECKING:
    from legroom.gpus.catalog import GpuSpec
    from legroom.predict.estimate import Estimate

EXIT_CODES = {"fits": 0, "does-not-fit": 1, "uncertain": 3}


def estimate(
    script: ScriptArguments = None,
    module: ModuleOption = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            metavar="NAME|SIZE",
            help="GPU to estimate for: a size such as 24GiB, or a name such as rtx4090, a100-80gb or t4. Default: the first GPU on this machine.",
            show_default=False,
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size",
            min=1,
            metavar="N",
            help="Override the DataLoader's batch size.",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[
        int, typer.Option("--steps", min=1, metavar="N", help="Number of training steps to trace.")
    ] = 2,
    multiple_of: Annotated[
        int,
        typer.Option(
            "--multiple-of", min=1, metavar="N", help="Round the largest batch size down to a multiple of N."
        ),
    ] = 1,
    plan: Annotated[
        bool, typer.Option("--plan", help="Suggest memory-saving options even if the script fits.")
    ] = False,
    verbose: VerboseOption = False,
    format: FormatOption = Format.TEXT,
) -> int:
    """Predict whether SCRIPT fits on a GPU, its peak memory and the largest batch size.

    The script runs unmodified on fake tensors until it completes two optimizer steps. No GPU is needed. If the script
    does not fit, memory-saving options are suggested.

    Exit code: 0 if it fits, 1 if it does not, 3 if uncertain.
    """
    target = script_to_run("legroom estimate --gpu 24GiB", script, module)

    from legroom.gpus.catalog import find_gpu
    from legroom.predict.tracing.worker_process import start_tracing

    target.check()
    spec = _gpu_of_this_machine() if gpu is None else find_gpu(gpu)
    # The new process imports torch and the script while this process imports the rest.
    process = start_tracing(target, spec, steps=steps)

    from legroom.predict.script_estimate import estimate_script
    from legroom.show.common.progress import progress_line
    from legroom.show.common.terminal import print_to
    from legroom.show.estimate.estimate import (
        render_details,
        render_short_details,
        render_short_verdict,
        render_verdict,
    )

    def on_verdict(estimate: "Estimate") -> None:
        if format == Format.TEXT:
            show_progress("")
            print_to(sys.stdout, (render_verdict if verbose else render_short_verdict)(estimate))

    def on_long_wait(text: str) -> None:
        if not sys.stderr.isatty():  # a terminal shows the progress
            say(text)

    with progress_line(sys.stderr, quiet=format == Format.JSON) as show_progress:
        result = estimate_script(
            target,
            spec,
            process=process,
            batch_size=batch_size,
            steps=steps,
            multiple_of=multiple_of,
            plan=plan,
            show_progress=show_progress,
            on_verdict=on_verdict,
            on_long_wait=on_long_wait,
        )
    if format == Format.JSON:
        print(json.dumps(result.as_json(), indent=2))
    else:
        print_to(sys.stdout, (render_details if verbose else render_short_details)(result))
    return EXIT_CODES[result.estimate.verdict]


def _gpu_of_this_machine() -> "GpuSpec":
    from legroom.gpus.catalog import real_gpu
    from legroom.gpus.machine import gpus, visible_gpus
    from legroom.units import format_size

    found = visible_gpus() if gpus() else []  # `gpus` is fast, because it does not import torch
    if not found:
        raise UsageError("No GPU given. Add `--gpu` with a size (24GiB) or a name (rtx4090).")
    say(
        f"No --gpu given. The estimate is for the GPU in this machine: {found[0].name}, {format_size(found[0].total)}."
    )
    return real_gpu(found[0].name, found[0].total)
