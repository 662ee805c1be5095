"""Sentences that Legroom says while somebody's program runs say whose they are."""

import logging
import subprocess
import sys

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
