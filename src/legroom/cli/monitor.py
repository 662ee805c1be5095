"""`legroom monitor`: shows a live view of GPUs, processes and runs."""

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from legroom.cli.options import Format, FormatOption
from legroom.errors import MissingExtra, UsageError

if TYPE_CHECKING:
    from legroom.show.monitor.snapshot import Sampler

FIRST_SAMPLE_SECONDS = 0.25
"""The number of seconds between the two samples from which `--once` computes the CPU use."""


def monitor(
    once: Annotated[bool, typer.Option("--once", help="Print the current state as text and exit.")] = False,
    format: FormatOption = Format.TEXT,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", help="Time between updates.")
    ] = 1.0,
    serve: Annotated[
        bool,
        typer.Option("--serve", help="Serve a read-only monitor to a browser on this machine."),
    ] = False,
    port: Annotated[
        int | None,
        typer.Option("--port", metavar="N", help="Port for --serve.", show_default="a free port"),
    ] = None,
) -> int:
    """Show a live view of GPUs, processes, and runs started with Legroom.

    Without a GPU, the host and virtual GPUs are shown. With `--format json`, or if the output is not a terminal, the
    current state is printed once.
    """
    from legroom.show.common.live_line import can_repaint
    from legroom.show.monitor.snapshot import Sampler

    as_json = format is Format.JSON
    if not 0.1 <= interval <= 3600:
        raise UsageError("--interval must be between 0.1 and 3600 seconds.")
    if port is not None and not serve:
        raise UsageError("--port requires --serve.")
    if port is not None and not 0 <= port <= 65535:
        raise UsageError("--port must be between 0 and 65535.")
    if serve and (once or as_json):
        raise UsageError("--serve cannot be combined with --once or --format json.")
    sampler = Sampler()
    try:
        if serve:
            return _serve(sampler, port=port or 0, interval=interval)
        if once or as_json or not (can_repaint(sys.stdout) and can_repaint(sys.stdin)):
            return _print(sampler, as_json=as_json)
        try:
            from legroom.show.monitor.app import MonitorApp
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "textual":
                raise
            raise MissingExtra("Textual", "monitor") from None
        MonitorApp(sampler, interval=interval).run()
        return 0
    finally:
        sampler.close()


def _print(sampler: "Sampler", *, as_json: bool) -> int:
    from legroom.show.common.terminal import print_to, width_of
    from legroom.show.monitor.text import render_snapshot

    sampler.read()
    time.sleep(FIRST_SAMPLE_SECONDS)
    snapshot = sampler.read()
    if as_json:
        print(json.dumps(snapshot.as_json(), indent=2))
    else:
        print_to(sys.stdout, render_snapshot(snapshot, width=width_of(sys.stdout)))
    return 0


def _serve(sampler: "Sampler", *, port: int, interval: float) -> int:
    from legroom.log import say
    from legroom.show.monitor.serve import MonitorServer

    server = MonitorServer(sampler, port=port, interval=interval)
    try:
        print(server.url, flush=True)
        say("Open this address in a browser. Press Ctrl-C to stop.")
        server.run()
    except KeyboardInterrupt:
        say("Stopped.")
    finally:
        server.close()
    return 0
