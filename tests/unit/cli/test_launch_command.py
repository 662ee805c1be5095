"""`legroom launch`: starting ranks, their output, and failures.

The scripts do not import torch, so that their ranks start quickly.
"""

import json
import re
import signal
import socket
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TALKING = """
import os, sys
print("hello from", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], os.environ.get("LEGROOM_STRATEGY"))
print("a warning", file=sys.stderr)
"""
FAILING = """
import os, time
if os.environ["RANK"] == "1":
    raise ValueError("the loss is not a number")
time.sleep(60)
"""
KILLED_ONCE = """
import os, signal, time
print("attempt", os.environ["TORCHELASTIC_RESTART_COUNT"])
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else 0)
"""
WITHOUT_GUARD = """
import multiprocessing
worker = multiprocessing.get_context("spawn").Process(target=print)
worker.start()
worker.join()
raise SystemExit(worker.exitcode)
"""


def test_output_has_a_rank_prefix_and_is_saved_and_the_torchrun_command_is_shown(launch):
    done = launch(TALKING, ["--nproc", "2", "--strategy", "ddp"])
    assert done.returncode == 0
    assert "  LEGROOM_STRATEGY=ddp torchrun --standalone --nproc-per-node=2 train.py\n" in done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] hello from 0 of 2 ddp", "[1] hello from 1 of 2 ddp"]
    assert "[0] a warning\n" in done.stderr
    assert Path("train.launch/rank-1.out").read_text() == "hello from 1 of 2 ddp\n"


def test_the_first_failure_is_shown_and_the_others_are_summarized(launch):
    done = launch(FAILING, ["--nproc", "3"])
    assert done.returncode == 1
    assert re.search(r"Rank 1 failed first after .*: ValueError: the loss is not a number\.", done.stderr)
    assert done.stderr.count("Traceback") == 1
    assert "ranks 0 and 2: stopped by the launcher" in done.stderr
    assert "ValueError" in Path("train.launch/rank-1.err").read_text()


def test_a_killed_rank_is_named_and_the_others_are_stopped(launch):
    done = launch(KILLED_ONCE, ["--nproc", "2"])
    assert done.returncode == 128 + signal.SIGKILL
    assert "Rank 1 was killed by SIGKILL" in done.stderr
    assert "rank 0: stopped by the launcher" in done.stderr


def test_all_ranks_are_restarted_with_max_restarts(launch):
    done = launch(KILLED_ONCE, ["--nproc", "2", "--max-restarts", "1"])
    assert done.returncode == 0
    said = " ".join(done.stderr.split())
    assert re.search(r"rank 1 was killed by SIGKILL after .*\. Restarting all ranks \(1 of 1\)\.", said)
    assert re.search(r"Both ranks finished in .* after 1 restart\.", said)
    assert Path("train.launch/restart-1/rank-1.out").read_text() == "attempt 1\n"


def test_json_names_the_failed_rank_and_its_output(launch):
    done = launch(FAILING, ["--nproc", "2", "--format", "json"])
    report = json.loads(done.stdout)
    assert (report["schema"], report["exit_code"], report["first_failure"]) == ("legroom.launch/1", 1, 1)
    first, second = report["ranks"]
    assert (first["signal"], second["error"]) == ("SIGTERM", "ValueError: the loss is not a number")
    assert second["stderr"] == "train.launch/rank-1.err"


def test_a_missing_main_guard_is_reported(launch):
    done = launch(WITHOUT_GUARD, ["--nproc", "1"])
    assert done.returncode == 1
    assert "The script has no main guard" in done.stderr


def test_a_missing_node_ends_the_launch_without_a_log_directory(launch):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{probe.getsockname()[1]}"
    done = launch(TALKING, ["--nodes", "2", "--rendezvous", place, "--wait", "1"])
    assert done.returncode == 2
    assert f"Too few nodes connected to {place} within 1 s (minimum: 2)" in done.stderr
    assert not list(Path().glob("*.launch"))


def test_missing_ray_is_reported_in_one_line(launch, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    done = launch(TALKING, ["--engine", "ray"])
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("legroom: Ray is not installed: pip install ")
