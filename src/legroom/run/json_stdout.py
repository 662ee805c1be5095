"""stdout kept for one JSON document, while the script's own output goes to stderr."""

import json
import os
import sys
from typing import Any


class JsonStdout:
    """From now on whatever this process or its children print to stdout goes to stderr, until the process ends.

    It is done to the file descriptor, so that subprocesses and libraries in C follow. It is not undone after the
    document was written, since exit handlers of the script may still print.
    """

    def __init__(self) -> None:
        sys.stdout.flush()
        self._descriptor = os.dup(1)
        os.dup2(2, 1)
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(line_buffering=True)  # in order with what goes to stderr directly

    def write(self, document: dict[str, Any]) -> None:
        remaining = (json.dumps(document, indent=2) + "\n").encode()
        try:
            while remaining:
                remaining = remaining[os.write(self._descriptor, remaining) :]
        except OSError:  # the reader went away
            return
