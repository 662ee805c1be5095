"""A terminal without input, for the process that traces a script.

When a script runs with `python`, its standard input is usually a terminal, and some scripts query its size (`stty
size`). A script that reads from this terminal receives an end of file.
"""

import contextlib
import os
import shutil

END_OF_FILE = b"\x04" * 256
"""End-of-file characters. Each call to `read` consumes one of these characters and returns no data."""


def open_terminal() -> tuple[int, int] | None:
    """Open a pseudo-terminal of the same size as the user's terminal. Return two file descriptors: Legroom's end and
    the script's end.

    Return None if the system has no pseudo-terminals.
    """
    try:
        import fcntl
        import struct
        import termios

        ours, theirs = os.openpty()
    except (ImportError, AttributeError, OSError):
        return None
    with contextlib.suppress(OSError, termios.error):
        columns, lines = shutil.get_terminal_size()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        settings = termios.tcgetattr(theirs)
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(theirs, termios.TCSANOW, settings)
        os.write(ours, END_OF_FILE)
    return ours, theirs


def report_terminal_size() -> None:
    """Make `os.get_terminal_size` return the size of the terminal on standard input if the given descriptor is not a
    terminal. The standard output of a traced script is a file, for which the original function raises an error.
    """
    plain = os.get_terminal_size

    def get_terminal_size(*descriptor: int) -> os.terminal_size:
        try:
            return plain(*descriptor)
        except OSError:
            return plain(0)

    os.get_terminal_size = get_terminal_size
