"""Sentences that Legroom says while somebody's program runs say whose they are."""

import fcntl
import logging
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

SAY = "from legroom.log import log; log.warning('%s rows did not fit.', 8)"


def printed(program: str) -> str:
    """What a fresh interpreter, whose logging nobody has arranged, prints on stderr."""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stderr


def test_a_sentence_that_nobody_else_handles_names_who_says_it() -> None:
    assert printed(SAY) == "legroom: 8 rows did not fit.\n"


def test_a_program_that_arranged_its_logging_gets_the_sentence_once_and_in_its_own_form() -> None:
    arranged = "import logging; logging.basicConfig(format='%(name)s says %(message)s'); "
    assert printed(arranged + SAY) == "legroom says 8 rows did not fit.\n"


def test_a_handler_of_the_logger_itself_replaces_ours() -> None:
    arranged = "import logging; logging.getLogger('legroom').addHandler(logging.NullHandler()); "
    assert printed(arranged + SAY) == ""


def test_what_is_said_on_the_side_is_not_printed() -> None:
    assert printed("from legroom.log import log; log.setLevel('INFO'); log.info('a detail')") == ""


def test_arranged_logging_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    from legroom.log import log

    with caplog.at_level(logging.WARNING):
        log.warning("8 rows did not fit.")
    assert caplog.messages == ["8 rows did not fit."]


def on_a_terminal(program: str, columns: int) -> str:
    """What a fresh interpreter prints on a terminal of that width."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    subprocess.run([sys.executable, "-c", program], stderr=its, check=True)
    os.close(its)
    with os.fdopen(ours, "rb") as terminal:
        return terminal.read1(65536).decode().replace("\r\n", "\n")


LONG = (
    "the script stopped before its first step: /home/somebody/train.py:12 asks for a file that is not there"
)


def test_a_long_sentence_is_folded_to_the_width_of_a_terminal_and_no_path_is_broken() -> None:
    told = on_a_terminal(f"from legroom.log import say; say({LONG!r})", 40)
    assert max(map(len, told.splitlines())) <= 40
    assert "/home/somebody/train.py:12" in told
    assert " ".join(told.split()) == f"legroom: {LONG}"


def test_a_long_sentence_is_one_line_where_no_terminal_is() -> None:
    assert printed(f"from legroom.log import say; say({LONG!r})") == f"legroom: {LONG}\n"
