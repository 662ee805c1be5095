"""Whether nodes can meet where they are told to: a port that another program holds is found in seconds, not in minutes."""

import socket
from datetime import timedelta

import psutil
import torch.distributed as distributed

from legroom.errors import LegroomError, UsageError
from legroom.scale.launching.plan import LaunchPlan

PATIENCE_SECONDS = 5


def check_place(plan: LaunchPlan) -> None:
    """Raise where the host has no address, or where its port is this machine's and another program answers there."""
    if plan.rendezvous is None:
        return
    host, _, port = plan.rendezvous.rpartition(":")
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
    """Whether another node of a launch waits there already."""
    try:
        store = distributed.TCPStore(  # type: ignore[attr-defined]
            host, port, is_master=False, timeout=timedelta(seconds=PATIENCE_SECONDS)
        )
        store.check(["legroom"])
    except Exception:  # whatever a stranger answers
        return False
    return True


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
