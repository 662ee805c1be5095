"""`legroom launch` in a separate process: Ctrl-C, several nodes, Ray."""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.system.conftest import ENVIRONMENT, LEGROOM, free_port

PRINTING = """
import os, sys
print("hello from", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], os.environ.get("LEGROOM_STRATEGY"))
print("a warning", file=sys.stderr)
"""
WAITING = """
import time
print("waiting", flush=True)
time.sleep(60)
"""


def test_ctrl_c_stops_all_ranks(write, start, tmp_path):
    process = start("launch", "--nproc", "2", write(WAITING))
    assert process.stdout is not None
    assert {process.stdout.readline() for _ in range(2)} == {"[0] waiting\n", "[1] waiting\n"}
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Interrupted: both ranks were stopped." in err
    assert "Traceback" not in err
    assert not _running("train.py", tmp_path)


SPAWNING = """
import os

def train(rank):
    import torch.distributed as dist

    dist.init_process_group("gloo", "tcp://127.0.0.1:29517", rank=rank, world_size=1)

if __name__ == "__main__" and os.environ["RANK"] == "0":  # one rank is enough, and each import of torch takes seconds
    import torch.multiprocessing as mp

    mp.spawn(train, nprocs=1)
"""


def test_a_script_that_starts_its_own_ranks_is_rejected(write, legroom):
    done = legroom("launch", "--nproc", "2", write(SPAWNING), timeout=120)
    assert done.returncode == 1
    assert "Start the script with `legroom run train.py`" in " ".join(done.stderr.split())


LATE = """
import os, time
import torch.distributed as dist
from legroom.train.ranks import waiting
waiting.REPORT_SECONDS, waiting._POLL_SECONDS = 0.2, 0.05
dist.init_process_group("gloo")
if os.environ["RANK"] == "1":
    time.sleep(5)
dist.barrier()
"""


@pytest.mark.ranks
def test_a_wait_inside_torch_is_reported_with_the_lines_of_all_ranks(write, legroom):
    done = legroom("launch", "--nproc", "2", write(LATE), timeout=120)
    assert done.returncode == 0
    assert re.search(
        r"\[0\] legroom: Rank 0 has waited for \d s at .*train.py:9. Rank 1 is at .*train.py:8.", done.stderr
    )


def test_two_nodes_connect(write, legroom):
    arguments = ["launch", "--nodes", "2", "--rendezvous", f"127.0.0.1:{free_port()}", write(PRINTING)]
    with ThreadPoolExecutor() as threads:
        nodes = list(threads.map(lambda _: legroom(*arguments), range(2)))
    assert [node.returncode for node in nodes] == [0, 0]
    assert sorted(node.stdout for node in nodes) == [
        "[0] hello from 0 of 2 None\n",
        "[1] hello from 1 of 2 None\n",
    ]


@pytest.fixture
def two_networks() -> Iterator[list[str]]:
    """Yield two network namespaces with one address each. The host name is an alias of 127.0.0.1 in both."""
    names = [f"legroom-{os.getpid()}-{number}" for number in (1, 2)]
    links = [f"lg{os.getpid()}-{number}" for number in (1, 2)]
    commands = [f"ip netns add {name}" for name in names]
    commands.append(f"ip link add {links[0]} type veth peer name {links[1]}")
    for number, (name, link) in enumerate(zip(names, links, strict=True), 1):
        inside = f"ip netns exec {name} ip"
        commands += [
            f"ip link set {link} netns {name}",
            f"{inside} link set lo up",
            f"{inside} addr add 10.77.0.{number}/24 dev {link}",
            f"{inside} link set {link} up",
        ]
    try:
        for command in commands:
            try:
                subprocess.run(command.split(), check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError):
                pytest.skip("network namespaces are not available")
        yield names
    finally:
        for name in names:
            with contextlib.suppress(OSError):
                subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


RESTARTED = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("sum", total.item(), "at", os.environ["MASTER_ADDR"], flush=True)
total.zero_()
while not total.item():
    time.sleep(0.1)
    total.fill_(os.path.exists("stop"))
    dist.all_reduce(total)
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.ranks
def test_nodes_with_different_addresses_connect_and_continue_after_the_node_with_the_rendezvous_is_started_again(
    write, tmp_path, two_networks
):
    command = [*LEGROOM, "launch", "--nodes", "2", "--max-restarts", "1", "--rendezvous", "10.77.0.1:29400"]

    def start(network: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["ip", "netns", "exec", network, *command, write(RESTARTED)],
            cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def assert_connected(*nodes: subprocess.Popen[str]) -> None:
        lines = [node.stdout.readline()[4:-1] for node in nodes]
        assert lines in (["sum 2.0 at 10.77.0.1"] * 2, ["sum 2.0 at 10.77.0.2"] * 2)

    lost, other = map(start, two_networks)
    assert_connected(lost, other)
    lost.kill()
    lost.wait()
    regained = start(two_networks[0])
    assert_connected(regained, other)
    (tmp_path / "stop").touch()
    _, messages = other.communicate(timeout=60)
    regained.communicate(timeout=60)
    assert [node.returncode for node in (regained, other)] == [0, 0]
    assert "The launch at 10.77.0.1:29400 no longer responds" in messages
    assert "frame #" not in messages  # stacks of torch's C++ code


def _running(script: str, folder: Path) -> list[int]:
    """Return the processes that still run `script` in `folder` after up to two seconds."""
    for _ in range(20):
        found = [
            pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if _is(pid, script, folder)
        ]
        if not found:
            return []
        time.sleep(0.1)
    return found


def _is(pid: int, script: str, folder: Path) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return script.encode() in words and os.readlink(f"/proc/{pid}/cwd") == str(folder)
    except OSError:
        return False
