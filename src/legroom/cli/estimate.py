"""`legroom estimate`: whether a script fits a GPU, and its largest batch, before it runs."""

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from legroom.cli.options import Format, FormatOption, ModuleOption, ScriptWords
from legroom.errors import UsageError

if TYPE_CHECKING:
    from legroom.predict.estimate import Estimate

EXIT_CODES = {"fits": 0, "does-not-fit": 1, "uncertain": 3}


def estimate(
    script: ScriptWords = None,
    module: ModuleOption = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            metavar="NAME|SIZE",
            help="The GPU: rtx4090, a100-80gb, t4, or a size such as 24GiB.",
            show_default=False,
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size", min=1, metavar="N", help="Instead of the DataLoader's own.", show_default=False
        ),
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="How many training steps to trace.")] = 2,
    multiple_of: Annotated[
        int, typer.Option("--multiple-of", min=1, metavar="N", help="Of the largest batch.")
    ] = 1,
    plan: Annotated[bool, typer.Option("--plan", help="Say what would save memory even if it fits.")] = False,
    format: FormatOption = Format.TEXT,
) -> int:
    """Say whether SCRIPT fits a GPU, where its peak is, its largest batch, and what would make it fit.

    The script runs unmodified, without data on the device, until it has taken two optimizer steps; no GPU is needed.
    Exit code: 0 fits, 1 does not, 3 uncertain.
    """
    words = list(script or ())
    if module is None and not words:
        raise UsageError("which script? write legroom estimate --gpu 24GiB train.py")
    if gpu is None:
        raise UsageError("which GPU? write --gpu 24GiB, or a name such as --gpu rtx4090")

    from legroom.gpus.catalog import find_gpu
    from legroom.observe.script import Script
    from legroom.predict.tracing.start import start

    target = (
        Script(module, tuple(words), is_module=True)
        if module is not None
        else Script(words[0], tuple(words[1:]))
    )
    target.check()
    spec = find_gpu(gpu)
    started = start(target, spec, steps=steps)  # it loads torch and the script while we load ours

    from legroom.predict.script_estimate import estimate_script
    from legroom.show.common.progress import progress_line
    from legroom.show.common.terminal import print_to
    from legroom.show.estimate.estimate import further_words, verdict_words

    def tell(now: "Estimate") -> None:
        if format == Format.TEXT:
            say("")
            print_to(sys.stdout, verdict_words(now))

    with progress_line(sys.stderr, quiet=format == Format.JSON) as say:
        told = estimate_script(
            target,
            spec,
            started=started,
            batch_size=batch_size,
            steps=steps,
            multiple_of=multiple_of,
            plan=plan,
            say=say,
            tell=tell,
        )
    if format == Format.JSON:
        print(json.dumps(told.as_json(), indent=2))
    else:
        print_to(sys.stdout, further_words(told))
    return EXIT_CODES[told.estimate.verdict]
