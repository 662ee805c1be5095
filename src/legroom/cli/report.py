"""`legroom report`: shows the report for a recorded run."""

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


def report(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Capture file written by legroom run, or a PyTorch memory snapshot (.pickle).",
        ),
    ],
    compare: Annotated[
        Path | None,
        typer.Option(
            "--compare",
            metavar="OTHER",
            help="Also show the changes since this capture.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        int | None,
        typer.Option(
            "--device",
            metavar="N",
            help="GPU to show.",
            show_default="the GPU that ran out of memory, or else the fullest GPU",
        ),
    ] = None,
    html: HtmlOption = None,
    no_source: Annotated[bool, typer.Option("--no-source", help="Omit source code from the page.")] = False,
    force: ForceOption = False,
    open_page: OpenOption = False,
    verbose: VerboseOption = False,
    format: FormatOption = Format.TEXT,
) -> int:
    """Show the report for a recorded run: the peak or the failure, what used the memory, and what to change."""
    if html is not None:
        if compare is not None:
            raise UsageError(
                "--html and --compare cannot be combined. Use `legroom diff BEFORE AFTER --html PAGE`."
            )
        return _write_page(
            file, html, device=device, with_source=not no_source, force=force, open_page=open_page
        )
    if force or open_page or no_source:
        raise UsageError("--force, --open and --no-source require --html PAGE.")
    from legroom.diagnose.report.run_report import report_from_capture
    from legroom.memory.compare import compare_captures
    from legroom.show.common.terminal import print_to
    from legroom.show.report.comparison import comparison_as_dict, render_comparison
    from legroom.show.report.run_report import render_report
    from legroom.show.report.short_report import render_short_report, render_short_summary

    capture = read_recording(file)
    result = report_from_capture(capture, path=str(file), device=device)
    compared_device = result.device.index if result.device else 0
    if compare is None:
        if format == Format.JSON:
            print(json.dumps(result.as_json(), indent=2))
        else:
            print_to(sys.stdout, render_report(result) if verbose else render_short_report(result))
        return 0
    older = read_recording(compare)
    difference = compare_captures(older, capture, device=compared_device)
    before = report_from_capture(older, path=str(compare))
    if format == Format.JSON:
        print(json.dumps({**result.as_json(), "compared": comparison_as_dict(difference, before)}, indent=2))
    else:
        compared = render_comparison(difference, before=str(compare), runs=(before, result), verbose=verbose)
        print_to(sys.stdout, render_report(result) if verbose else render_short_summary(result), compared)
    return 0


def _write_page(
    file: Path, html: Path, *, device: int | None, with_source: bool, force: bool, open_page: bool
) -> int:
    from legroom.diagnose.report.run_figures import figures_from_capture
    from legroom.show.common.html_page import check_new, show_page, write_new
    from legroom.show.common.progress import progress_line
    from legroom.show.report.html_report.page_writer import page

    check_new(html, force=force)
    with progress_line(sys.stderr) as progress:
        progress(f"Reading {file}")
        capture = read_recording(file)
        progress(f"Aggregating {len(capture.events):,} events")
        figures = figures_from_capture(capture, path=str(file), chosen_device=device)
        text = page(figures, with_source=with_source)
    show_page(write_new(html, text, force=force), open_page=open_page)
    return 0
