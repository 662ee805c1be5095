"""`legroom monitor`: live GPUs, processes and runs."""

import json
import sys
import time
from typing import Annotated

import typer

FIRST_SAMPLE_SECONDS = 0.25
"""The time between the two samples of `--once`. CPU use is the difference of two samples."""


def monitor(
    once: Annotated[bool, typer.Option("--once", help="Print the current state as text and exit.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the current state as JSON and exit.")
    ] = False,
) -> int:
    """Show GPUs, processes, and runs started with Legroom, live.

    Without a GPU, the host and virtual GPUs are shown. If the output is not a terminal, the current state is printed once.
    """
    from legroom.show.common.terminal import print_to, width_of
    from legroom.show.monitor.snapshot import Sampler
    from legroom.show.monitor.text import render_snapshot

    sampler = Sampler()
    sampler.read()
    time.sleep(FIRST_SAMPLE_SECONDS)
    snapshot = sampler.read()
    sampler.close()
    if as_json:
        print(json.dumps(snapshot.as_json(), indent=2))
    else:
        print_to(sys.stdout, render_snapshot(snapshot, width=width_of(sys.stdout)))
    return 0
