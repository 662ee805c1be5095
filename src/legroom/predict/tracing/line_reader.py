"""Lines from a pipe, waited for no longer than wanted. (A text file's own buffer would hide lines from `select`.)"""

import os
import select


class LineReader:
    """Reads whole lines from a file descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._rest = b""

    def line(self, seconds: float | None) -> str | None:
        """The next line; None if there is none after `seconds` (None: wait for ever). Raises `EOFError` at the end."""
        while b"\n" not in self._rest:
            if not select.select([self._descriptor], [], [], seconds)[0]:
                return None
            more = os.read(self._descriptor, 65536)
            if not more:
                raise EOFError
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def close(self) -> None:
        os.close(self._descriptor)
