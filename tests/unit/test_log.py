"""Log messages have the prefix `legroom: ` unless the program configures logging."""

import fcntl
import logging
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

SAY = "from legroom.log import log; log.warning('%s samples did not fit.', 8)"


def printed(program: str) -> str:
    """Return the stderr of a program in a new interpreter without logging configuration."""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stderr


def test_a_message_without_another_handler_has_the_prefix() -> None:
    assert printed(SAY) == "legroom: 8 samples did not fit.\n"


def test_configured_logging_formats_the_message_once() -> None:
    configuration = "import logging; logging.basicConfig(format='%(name)s says %(message)s'); "
    assert printed(configuration + SAY) == "legroom says 8 samples did not fit.\n"


def test_a_handler_on_the_logger_replaces_the_default() -> None:
    configuration = "import logging; logging.getLogger('legroom').addHandler(logging.NullHandler()); "
    assert printed(configuration + SAY) == ""


def test_info_messages_are_not_printed() -> None:
    assert printed("from legroom.log import log; log.setLevel('INFO'); log.info('a detail')") == ""


def test_the_message_has_no_prefix_for_other_handlers(caplog: pytest.LogCaptureFixture) -> None:
    from legroom.log import log

    with caplog.at_level(logging.WARNING):
        log.warning("8 samples did not fit.")
    assert caplog.messages == ["8 samples did not fit."]


def on_a_terminal(program: str, columns: int) -> str:
    """Return the output of a program in a new interpreter on a terminal with this many columns."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    subprocess.run([sys.executable, "-c", program], stderr=its, check=True)
    os.close(its)
    with os.fdopen(ours, "rb") as terminal:
        return terminal.read1(65536).decode().replace("\r\n", "\n")


LONG = "The script stopped before its first step: /home/user/project/train.py:12 opens a file that does not exist"


def test_a_long_message_is_wrapped_on_a_terminal_without_breaking_paths() -> None:
    printed_text = on_a_terminal(f"from legroom.log import say; say({LONG!r})", 40)
    assert max(map(len, printed_text.splitlines())) <= 40
    assert "/home/user/project/train.py:12" in printed_text
    assert " ".join(printed_text.split()) == f"legroom: {LONG}"


def test_a_long_message_is_one_line_without_a_terminal() -> None:
    assert printed(f"from legroom.log import say; say({LONG!r})") == f"legroom: {LONG}\n"


def test_a_line_break_in_a_name_does_not_imitate_a_second_message(capsys: pytest.CaptureFixture[str]) -> None:
    from legroom.log import say

    say("Script `a\nlegroom: forged.py` not found.")
    assert capsys.readouterr().err == "legroom: Script `a legroom: forged.py` not found.\n"


@pytest.mark.parametrize("invisible", ["\u200e", "\u200f", "\u200b", "\u061c", "\ufeff", "\u202e"])
def test_invisible_characters_are_replaced(invisible: str) -> None:
    from legroom.log import printable

    assert printable(f"train{invisible}.py") == "train�.py"
