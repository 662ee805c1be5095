"""A trial beside a Ray worker that stays."""

import platform
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from legroom.tuning.ray_trial import PROCESS, REPORTED, end_process


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    threading.Thread(target=process.wait, daemon=True).start()  # as its fork server would
    yield process
    process.kill()


def test_a_stopped_trial_is_gone_before_its_memory_is_given_to_another(
    sleeper: "subprocess.Popen[bytes]",
) -> None:
    end_process({REPORTED: None, PROCESS: (platform.node(), sleeper.pid)})
    assert sleeper.wait(5) == -9


@pytest.mark.parametrize("told", [{}, {PROCESS: None}])
def test_a_trial_in_a_worker_of_its_own_is_rays_to_end(told: dict[str, object]) -> None:
    end_process(told)


def test_a_process_of_another_machine_is_left_alone(sleeper: "subprocess.Popen[bytes]") -> None:
    end_process({PROCESS: ("another machine", sleeper.pid)})
    assert sleeper.poll() is None
