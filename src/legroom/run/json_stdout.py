"""The standard output of `legroom run --format json`, which contains only the JSON document."""

import json
import os
import sys
from typing import Any

from legroom.errors import OutputError
from legroom.log import say


class JsonStdout:
    """Redirects stdout to stderr until the process ends, except for one JSON document.

    The file descriptor itself is redirected, so the output of subprocesses and C libraries is redirected too. The
    redirection stays active after the document is written, because exit handlers of the script may still print.
    """

    def __init__(self) -> None:
        sys.stdout.flush()
        self._descriptor = os.dup(1)
        os.dup2(2, 1)
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(line_buffering=True)  # keeps the order of stdout and stderr

        self.failed = False

    def write(self, document: dict[str, Any]) -> None:
        remaining = (json.dumps(document, indent=2) + "\n").encode()
        try:
            while remaining:
                remaining = remaining[os.write(self._descriptor, remaining) :]
        except OSError as error:  # the pipe is closed, or the disk is full
            self.failed = True
            say(str(OutputError.from_error(error)))
