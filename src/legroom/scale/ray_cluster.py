"""Ray, started for a while and stopped after it, or a cluster that is there already and stays.

Ray that we start is quiet and private: no dashboard, no usage statistics, no output of workers on the terminal. Ray that the
caller has started, or that an address names, is used as it is and left running.
"""

import contextlib
import functools
import inspect
import logging
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from legroom.errors import MissingExtra, UsageError
from legroom.observe.virtual.patching import Replacement, replaced

QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}
SECONDS_TO_REACH = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """How its user says what concerns Ray: for sentences that name the remedy."""

    address: str
    """Before an address: `address=`."""
    without_cluster: str
    """What to do where none answers, beside starting one."""
    without_ray: str
    """What needs no Ray."""


@contextlib.contextmanager
def connected(
    address: str | None,
    words: Words,
    *,
    processors: int,
    gpus: int | None = None,
    settings: Mapping[str, str] = QUIET,
) -> Iterator[None]:
    """Ray is there inside: the caller's own, the cluster at `address`, or one of ours with so many processors and GPUs.

    `gpus`: None is all of this machine's. `settings`: of the environment, inside; the user's own come first.
    """
    with _environment(settings):
        if is_there():
            yield
            return
        if address is not None:  # before Ray is loaded, which takes seconds
            _check(address, words)
        try:
            import ray
        except ImportError:
            raise MissingExtra("Ray", "tune") from None

        try:
            with contextlib.nullcontext() if address else _without_observers():
                ray.init(
                    # "local": a cluster that happens to run here is not ours to fill
                    address=address or "local",
                    include_dashboard=None if address else False,
                    num_cpus=None if address else processors,
                    num_gpus=None if address else gpus,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    configure_logging=True,
                )
        except Exception as error:  # Ray raises plain ones, too, where it does not start in time
            if address == "auto":
                raise _unreachable(address, words) from None
            if address is not None:
                raise UsageError(
                    f"something answers at {address}, but Ray cannot join it ({_first_line(error)}): give the port that `ray start` "
                    "printed, and Ray's token in RAY_AUTH_TOKEN where the cluster asks for one"
                ) from None
            raise UsageError(
                f"Ray could not be started here ({_first_line(error)}): try again, or {words.without_ray}"
            ) from None
        try:
            yield
        finally:
            ray.shutdown()


def is_there() -> bool:
    """Whether the caller has started Ray, without loading it for the question."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


@contextlib.contextmanager
def _without_observers() -> Iterator[None]:
    """Ray that starts inside has nobody who adds machines, reads workers' logs or serves a dashboard: nobody asks them here, and each is a process that imports for a second.

    Private to Ray. Where it is called otherwise, they are started, and Ray is there one to two seconds later.
    """
    try:
        from ray._private import node, parameter
    except ImportError:
        yield
        return
    plain: Any = parameter.RayParams
    unwanted = {"no_monitor": True, "include_log_monitor": False}
    replacements = [Replacement(node.Node, "start_api_server", lambda *_, **__: None)]
    if unwanted.keys() <= inspect.signature(plain).parameters.keys():
        replacements.append(Replacement(parameter, "RayParams", functools.partial(plain, **unwanted)))
    with replaced(replacements):
        yield


def _check(address: str, words: Words) -> None:
    """Ray waits long for a host that is not there, so it is asked for first."""
    if address == "auto":
        return
    if address.startswith("ray://"):
        raise UsageError(
            f"{words.address}{address} is Ray's client: start this on a machine of the cluster with {words.address}auto, or name the "
            f"cluster itself, {words.address}host:6379"
        )
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdigit():
        raise UsageError(
            f"{words.address}{address} is no address: write host:6379, or auto for the cluster of this machine"
        )
    try:
        socket.create_connection((host, int(port)), timeout=SECONDS_TO_REACH).close()
    except (OSError, OverflowError):
        raise _unreachable(address, words) from None


def _unreachable(address: str, words: Words) -> UsageError:
    where = "on this machine" if address == "auto" else f"at {address}"
    return UsageError(
        f"there is no Ray cluster {where}: start one with `ray start --head`, {words.without_cluster}"
    )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].partition(". ")[0].rstrip(".") if lines else type(error).__name__


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set inside, unless the user has set them otherwise; as it was afterwards."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
