"""`legroom explain`: what an error means, from a log, a capture, standard input, its code or its own words."""

import json
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from legroom.cli.options import Format, FormatOption

_CODE = re.compile(r"\s*LG\d{3}\s*", re.IGNORECASE)


def explain(
    what: Annotated[
        str,
        typer.Argument(
            metavar="FILE|-|CODE|TEXT",
            help="A log or capture, - for standard input, a code such as LG710, or the error itself.",
        ),
    ],
    checks: Annotated[
        bool,
        typer.Option("--checks/--no-checks", help="Also look at this machine: memory, versions, limits."),
    ] = True,
    format: FormatOption = Format.TEXT,
) -> int:
    """Say what an error means: its causes, the check that decides between them, and the fix."""
    from legroom.show.common.terminal import print_to

    if _CODE.fullmatch(what) and not Path(what).exists():
        from legroom.diagnose.codes import find_page
        from legroom.show.explain.explanation import page_words

        page = find_page(what)
        if format == Format.JSON:
            print(
                json.dumps(
                    {"schema": 1, "code": page.code, "title": page.title, "page": page.markdown}, indent=2
                )
            )
        else:
            print_to(sys.stdout, page_words(page))
        return 0

    from legroom.diagnose.explain.explain import explain_file
    from legroom.diagnose.explain.machine_checks import looked_up
    from legroom.show.common.progress import said_on
    from legroom.show.explain.explanation import explanation_words
    from legroom.units import format_size

    if what == "-" and sys.stdin.isatty() and format == Format.TEXT:
        print("legroom: paste the error, then press Ctrl-D", file=sys.stderr)
    with said_on(sys.stderr, quiet=format == Format.JSON) as say:
        told = explain_file(
            what,
            here=looked_up if checks else None,
            progress=lambda done: say(f"read {format_size(done)}") if done > 1 << 24 else None,
        )
    if format == Format.JSON:
        print(json.dumps(told.as_json(), indent=2))
    else:
        print_to(sys.stdout, explanation_words(told))
    return 0
