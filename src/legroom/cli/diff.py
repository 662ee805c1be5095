"""`legroom diff`: shows which memory grew between two recorded runs."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from legroom.cli.options import (
    ForceOption,
    Format,
    FormatOption,
    HtmlOption,
    OpenOption,
    VerboseOption,
    read_recording,
)
from legroom.errors import UsageError


def diff(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="Capture of the older run.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="Capture of the newer run.")],
    fail_over: Annotated[
        str | None,
        typer.Option(
            "--fail-over",
            metavar="SIZE",
            help="Exit with status 1 if peak allocated memory grew by more than this size, for example 100MiB.",
            show_default=False,
        ),
    ] = None,
    html: HtmlOption = None,
    force: ForceOption = False,
    open_page: OpenOption = False,
    verbose: VerboseOption = False,
    format: FormatOption = Format.TEXT,
) -> int:
    """Show what grew between the peaks of two recorded runs, by category and line.

    Exit code: 0, or 1 if the peak grew by more than --fail-over.
    """
    from legroom import schemas
    from legroom.diagnose.report.run_report import report_from_capture
    from legroom.memory.compare import compare_captures
    from legroom.show.common.html_page import check_new, show_page, write_new
    from legroom.show.common.terminal import print_to
    from legroom.show.report.comparison import (
        comparison_as_dict,
        format_limit,
        render_comparison,
        run_as_dict,
    )
    from legroom.units import parse_size

    if html is None and (force or open_page):
        raise UsageError("--force and --open require --html PAGE.")
    limit = parse_size(fail_over) if fail_over is not None else None
    if html is not None:
        check_new(html, force=force)
    captures = read_recording(before), read_recording(after)
    runs = (
        report_from_capture(captures[0], path=str(before)),
        report_from_capture(captures[1], path=str(after)),
    )
    device = runs[1].device.index if runs[1].device else 0
    difference = compare_captures(*captures, device=device)
    failed = limit is not None and difference.allocated.delta > limit
    if format == Format.JSON:
        print(
            json.dumps(
                {
                    "schema": schemas.DIFF,
                    "failed": failed,
                    **comparison_as_dict(difference, runs[0]),
                    "after": run_as_dict(runs[1]),
                },
                indent=2,
            )
        )
    else:
        parts = [
            render_comparison(difference, before=str(before), after=str(after), runs=runs, verbose=verbose)
        ]
        if failed and limit is not None:
            parts.append(format_limit(limit))
        print_to(sys.stdout, *parts)
    if html is not None:
        from legroom.show.report.html_diff.page_writer import page

        written = write_new(html, page(difference, runs, names=(str(before), str(after))), force=force)
        show_page(written, open_page=open_page, file=sys.stderr if format == Format.JSON else sys.stdout)
    return 1 if failed else 0
