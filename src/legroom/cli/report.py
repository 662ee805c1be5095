"""`legroom report`: what a capture says, as often as wanted."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from legroom.cli.options import Format, FormatOption


def report(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A capture that legroom run wrote.")],
    compare: Annotated[
        Path | None,
        typer.Option(
            "--compare", metavar="OTHER", help="Also say what changed since this capture.", show_default=False
        ),
    ] = None,
    format: FormatOption = Format.TEXT,
) -> int:
    """Say what a capture holds: the peak or the failure, who held the memory, what to change."""
    from legroom.diagnose.report import comparison
    from legroom.diagnose.report.run_report import run_report
    from legroom.memory.capture.capture import read_capture
    from legroom.memory.compare import compare_captures
    from legroom.show.common.terminal import print_to
    from legroom.show.report.comparison import render_comparison
    from legroom.show.report.run_report import render_report

    capture = read_capture(file)
    told = run_report(capture, path=str(file))
    device = told.device.index if told.device else 0
    difference = (
        compare_captures(read_capture(compare), capture, device=device) if compare is not None else None
    )
    if format == Format.JSON:
        compared = {"compared": comparison.as_dict(difference)} if difference is not None else {}
        print(json.dumps({**told.as_json(), **compared}, indent=2))
        return 0
    print_to(sys.stdout, render_report(told))
    if difference is not None:
        print_to(sys.stdout, render_comparison(difference, before=str(compare)))
    return 0
