"""Checks the rendezvous address. If another program uses the port, the user gets an error within seconds. PyTorch
alone would report the error only after minutes.
"""

import socket
import subprocess
import sys

import psutil

from legroom.errors import LegroomError, UsageError

TIMEOUT_SECONDS = 5


def check_rendezvous(address: str) -> None:
    """Raise an error if the host of `host:port` is unknown, or if another program on this machine uses the port."""
    host, _, port = address.rpartition(":")
    addresses = _addresses(host)
    if not addresses & _own_addresses():
        return
    if _is_free(int(port)) or _is_rendezvous(host, int(port)):
        return
    raise LegroomError(
        f"Port {port} is used by another program{_process(int(port))}. Stop that program, or choose another port "
        f"by passing `--rendezvous {host}:{_next(int(port))}` on every node."
    )


def is_own_address(address: str) -> bool:
    """Return whether the host of `host:port` is this machine. PyTorch checks only the addresses of this machine's host
    name, which is often an alias for 127.0.0.1.
    """
    return bool(_addresses(address.rpartition(":")[0]) & _own_addresses())


def local_address(address: str) -> str | None:
    """Return the IP address that this machine uses to connect to `host:port`, or None if it is unknown."""
    host, _, port = address.rpartition(":")
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)  # selects a route, and sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return None


def interface_of(address: str | None) -> str | None:
    name: str
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == address for each in addresses):
            return name
    return None


def _addresses(host: str) -> set[str]:
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
    except OSError:
        raise UsageError(
            f"The host `{host}` is unknown. Check the name, or pass the IP address of the host to "
            "`--rendezvous`."
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


def _is_rendezvous(host: str, port: int) -> bool:
    """Return whether another node in the launch already listens on the port.

    The check runs in a separate process. If the program at the port does not respond, torch blocks for longer than its
    timeout. If the program closes the connection, torch prints a stack trace.
    """
    command = [sys.executable, "-c", _CHECK, host, str(port), str(TIMEOUT_SECONDS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()  # torch is loaded
        try:
            return process.wait(TIMEOUT_SECONDS) == 0
        except subprocess.TimeoutExpired:
            process.kill()
            return False


_CHECK = """
import os
import sys
from datetime import timedelta
from torch.distributed import TCPStore
print("ready", flush=True)
host, port, seconds = sys.argv[1:]
TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=float(seconds))).check(["legroom"])
os._exit(0)  # without the slow shutdown of torch
"""


def _process(port: int) -> str:
    """Return a description of the program that uses the port, such as ` (python, process 4711)`, or "" if the program
    is unknown.
    """
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.laddr and connection.laddr.port == port and connection.pid:
                return f" ({psutil.Process(connection.pid).name()}, process {connection.pid})"
    except (psutil.Error, OSError):
        pass
    return ""


def _next(port: int) -> int:
    return port + 1 if port < 65535 else port - 1
