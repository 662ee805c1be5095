"""`legroom explain`: explains an error given as a log, a capture, standard input, a code or a message."""

import json
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from legroom import schemas
from legroom.cli.options import Format, FormatOption, VerboseOption
from legroom.errors import InputError
from legroom.log import say

_CODE = re.compile(r"\s*LG\d{3}\s*", re.IGNORECASE)


def explain(
    what: Annotated[
        str,
        typer.Argument(
            metavar="FILE|-|CODE|TEXT",
            help="A log file, a capture, `-` for standard input, a code such as LG710, or an error message.",
        ),
    ],
    checks: Annotated[
        bool,
        typer.Option("--checks/--no-checks", help="Also check this machine's memory, versions and limits."),
    ] = True,
    verbose: VerboseOption = False,
    format: FormatOption = Format.TEXT,
) -> int:
    """Explain an error: its possible causes, a check for each cause, and the fix."""
    from legroom.show.common.terminal import print_to

    if _CODE.fullmatch(what) and not Path(what).exists():
        from legroom.diagnose.codes import find_page
        from legroom.show.explain.explanation import render_page

        page = find_page(what)
        if format == Format.JSON:
            print(
                json.dumps(
                    {"schema": schemas.CODE, "code": page.code, "title": page.title, "page": page.markdown},
                    indent=2,
                )
            )
        else:
            print_to(sys.stdout, render_page(page))
        return 0

    from legroom.diagnose.explain.explain import explain_file
    from legroom.diagnose.explain.machine_checks import check_machine
    from legroom.show.common.progress import progress_line
    from legroom.show.explain.explanation import render_explanation, render_short_explanation
    from legroom.units import format_size

    if what == "-" and sys.stdin is None:
        raise InputError
    if what == "-" and sys.stdin.isatty() and format == Format.TEXT:
        say("Paste the error, then press Ctrl-D.")
    with progress_line(sys.stderr, quiet=format == Format.JSON) as show_progress:
        explanation = explain_file(
            what,
            here=check_machine if checks else None,
            progress=lambda done: show_progress(f"Read {format_size(done)}") if done > 1 << 24 else None,
        )
    if format == Format.JSON:
        print(json.dumps(explanation.as_json(), indent=2))
    else:
        source = what if Path(what).is_file() else ""
        shown = render_explanation(explanation) if verbose else render_short_explanation(explanation, source)
        print_to(sys.stdout, shown)
    return 0
