"""Starts a temporary Ray instance, or connects to an existing cluster.

A temporary instance has no dashboard, no usage statistics, and no worker output on the terminal. An instance that the
caller has started, or a cluster whose address the caller passes, is used unchanged and left running.
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
CONNECT_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RayHelp:
    """Phrases for error messages, which depend on the command that uses Ray."""

    address: str
    """The prefix of an address, for example `address=`."""
    no_cluster: str
    no_ray: str


@contextlib.contextmanager
def connect_ray(
    address: str | None,
    help: RayHelp,
    *,
    processors: int,
    gpus: int | None = None,
    settings: Mapping[str, str] = QUIET,
) -> Iterator[None]:
    """Connect to the caller's Ray instance or to the cluster at `address`, or start an instance with these processors
    and GPUs.

    If `gpus` is None, all GPUs in this machine are used. `settings` contains environment variables that are set unless
    the user has set them.
    """
    with _environment(settings):
        if is_initialized():
            yield
            return
        if address is not None:  # before the slow import of Ray
            _check_address(address, help)
        try:
            import ray
        except ImportError:
            raise MissingExtra("Ray", "tune") from None

        try:
            with contextlib.nullcontext() if address else _without_services():
                ray.init(
                    # "local": do not use a cluster that happens to run here
                    address=address or "local",
                    include_dashboard=None if address else False,
                    num_cpus=None if address else processors,
                    num_gpus=None if address else gpus,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    configure_logging=True,
                )
        except Exception as error:  # Ray raises a plain Exception if it does not start in time
            if address == "auto":
                raise _no_cluster(address, help) from None
            if address is not None:
                raise UsageError(
                    f"Ray cannot connect to {address} ({_first_line(error)}). Use the port that `ray start` "
                    "printed, and set RAY_AUTH_TOKEN if the cluster requires a token."
                ) from None
            raise UsageError(
                f"Ray could not be started ({_first_line(error)}). Try again, or {help.no_ray}."
            ) from None
        try:
            yield
        finally:
            ray.shutdown()


def is_initialized() -> bool:
    """Return whether the caller has started Ray, without importing Ray."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


@contextlib.contextmanager
def _without_services() -> Iterator[None]:
    """Start Ray without autoscaler, log monitor and dashboard, because each of them is a process that takes a second to
    start.

    This function uses private Ray functions. If a version of Ray lacks these functions, the services are started, which
    takes one to two seconds longer.
    """
    try:
        from ray._private import node, parameter
    except ImportError:
        yield
        return
    original: Any = parameter.RayParams
    disabled = {"no_monitor": True, "include_log_monitor": False}
    replacements = [Replacement(node.Node, "start_api_server", lambda *_, **__: None)]
    if disabled.keys() <= inspect.signature(original).parameters.keys():
        replacements.append(Replacement(parameter, "RayParams", functools.partial(original, **disabled)))
    with replaced(replacements):
        yield


def _check_address(address: str, help: RayHelp) -> None:
    """Check that the host responds, because Ray waits a long time for a host that does not respond."""
    if address == "auto":
        return
    if address.startswith("ray://"):
        raise UsageError(
            f"`{help.address}{address}` is a Ray client address. Legroom does not support the Ray client. Run the "
            f"command on a cluster node with `{help.address}auto`, "
            f"or pass the cluster address, for example `{help.address}host:6379`."
        )
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdigit():
        raise UsageError(
            f"`{help.address}{address}` is not a valid address. Use `host:6379`, or `auto` for the cluster on this machine."
        )
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError):
        raise _no_cluster(address, help) from None


def _no_cluster(address: str, help: RayHelp) -> UsageError:
    location = "on this machine" if address == "auto" else f"at {address}"
    return UsageError(
        f"There is no Ray cluster {location}. Start a cluster with `ray start --head`, {help.no_cluster}."
    )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].partition(". ")[0].rstrip(".") if lines else type(error).__name__


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
