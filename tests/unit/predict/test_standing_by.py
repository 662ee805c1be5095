"""A process that stands by: asked, answered, gone."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from legroom.predict.tracing.worker_process import StandingBy, start_standing_by

Start = Callable[..., StandingBy]

ECHO = """
import json, os, sys
order, requests, replies = json.loads(sys.argv[1]), os.fdopen(int(sys.argv[2])), os.fdopen(int(sys.argv[3]), "w")
for line in requests:
    print(json.dumps({"order": order, "request": json.loads(line), "word": os.environ["WORD"]}), file=replies, flush=True)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a process that runs the text it is given."""
    with contextlib.ExitStack() as stack:

        def started(text: str) -> StandingBy:
            (tmp_path / "standing.py").write_text(text)
            process = start_standing_by(
                "standing", {"gpu": "8GiB"}, {"PYTHONPATH": str(tmp_path), "WORD": "hello"}
            )
            stack.callback(process.close)
            return process

        yield started


def test_it_gets_its_order_its_environment_and_requests_and_answers(start: Start) -> None:
    process = start(ECHO)
    for number in (1, 2):
        process.ask({"number": number})
        reply = process.reply(60)
        assert reply == {
            "order": {"gpu": "8GiB", "folder": process.folder.name}, "request": {"number": number}, "word": "hello",
        }  # fmt: skip


def test_a_reply_is_waited_for_no_longer_than_wanted(start: Start) -> None:
    assert start(ECHO).reply(0.01) is None


def test_of_one_that_failed_the_last_words_and_the_exit_code_are_told(start: Start) -> None:
    process = start("print('a word before'); raise SystemExit('no such file')")
    with pytest.raises(EOFError):
        process.reply(60)
    assert process.exit_code == 1
    assert process.output.splitlines() == ["a word before", "no such file"]
    assert process.last_words == "no such file"
    with pytest.raises(EOFError):
        process.ask({})


def test_killed_it_takes_along_what_it_started(start: Start) -> None:
    process = start(
        "import os, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "os.write(int(sys.argv[3]), b'{\"pid\": %d}\\n' % child.pid)\n"
        "child.wait()\n"
    )
    told = process.reply(60)
    assert told is not None
    process.kill()
    assert _is_dead(told["pid"])
    with pytest.raises(EOFError):
        process.reply(60)


def _is_dead(pid: int) -> bool:
    """Whether a process that was sent its end is dead, or gone altogether, after no more than ten seconds: the kernel takes its time."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for _ in range(1000):
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
            time.sleep(0.01)
        return False
    return True
