"""`legroom report`: the report of a recorded run."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from legroom.cli.options import Format, FormatOption


def report(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Capture file written by legroom run.")],
    compare: Annotated[
        Path | None,
        typer.Option(
            "--compare",
            metavar="OTHER",
            help="Also show the changes since this capture.",
            show_default=False,
        ),
    ] = None,
    format: FormatOption = Format.TEXT,
) -> int:
    """Show the report of a recorded run: the peak or the failure, what used the memory, and what to change."""
    from legroom.diagnose.report.run_report import report_from_capture
    from legroom.memory.capture.capture import read_capture
    from legroom.memory.compare import compare_captures
    from legroom.show.common.terminal import print_to
    from legroom.show.report.comparison import comparison_as_dict, render_comparison
    from legroom.show.report.run_report import render_report

    capture = read_capture(file)
    result = report_from_capture(capture, path=str(file))
    device = result.device.index if result.device else 0
    difference = (
        compare_captures(read_capture(compare), capture, device=device) if compare is not None else None
    )
    if format == Format.JSON:
        compared = {"compared": comparison_as_dict(difference)} if difference is not None else {}
        print(json.dumps({**result.as_json(), **compared}, indent=2))
        return 0
    print_to(sys.stdout, render_report(result))
    if difference is not None:
        print_to(sys.stdout, render_comparison(difference, before=str(compare)))
    return 0
