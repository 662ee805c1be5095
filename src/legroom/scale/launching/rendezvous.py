"""Whether nodes can meet where they are told to: a port that another program holds is found in seconds, not in minutes."""

import socket
import subprocess
import sys

import psutil

from legroom.errors import LegroomError, UsageError

PATIENCE_SECONDS = 5


def check_place(place: str) -> None:
    """Raise where the host of `host:port` has no address, or where the port is this machine's and another program's."""
    host, _, port = place.rpartition(":")
    addresses = _addresses(host)
    if not addresses & _own_addresses():
        return
    if _is_free(int(port)) or _is_meeting(host, int(port)):
        return
    raise LegroomError(
        f"port {port} is used by another program{_who(int(port))}: end it, or meet at another port, "
        f"with the same --rendezvous {host}:{_next(int(port))} on all nodes"
    )


def _addresses(host: str) -> set[str]:
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
    except OSError:
        raise UsageError(
            f"no address is known for '{host}': check its name, or give --rendezvous its number"
        ) from None


def _own_addresses() -> set[str]:
    return {address.address for each in psutil.net_if_addrs().values() for address in each}


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _is_meeting(host: str, port: int) -> bool:
    """Whether another node of a launch waits there already.

    Asked in a process of its own: a stranger that says nothing keeps torch waiting whatever its timeout, and one that hangs
    up makes it log its whole stack.
    """
    asking = [sys.executable, "-c", _QUESTION, host, str(port), str(PATIENCE_SECONDS)]
    with subprocess.Popen(asking, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()  # torch is there
        try:
            return process.wait(PATIENCE_SECONDS) == 0
        except subprocess.TimeoutExpired:
            process.kill()
            return False


_QUESTION = """
import sys
from datetime import timedelta
from torch.distributed import TCPStore
print("ready", flush=True)
host, port, seconds = sys.argv[1:]
TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=float(seconds))).check(["legroom"])
"""


def _who(port: int) -> str:
    """` (python, process 4711)`, where we may know."""
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.laddr and connection.laddr.port == port and connection.pid:
                return f" ({psutil.Process(connection.pid).name()}, process {connection.pid})"
    except (psutil.Error, OSError):
        pass
    return ""


def _next(port: int) -> int:
    return port + 1 if port < 65535 else port - 1
