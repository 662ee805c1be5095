"""Ray, started for a study and stopped after it, or a cluster that is there already and stays.

Ray that we start is quiet and private: no dashboard, no usage statistics, no output of workers on the terminal. Ray that the
caller has started, or that `address` names, is used as it is and left running.
"""

import contextlib
import importlib.util
import logging
import os
import socket
from collections.abc import Iterator

from legroom.errors import MissingExtra, UsageError

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a trial's GPU is the one that it was packed onto
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # the study keeps what was reported; twice would cost each report a write
    "RAY_AIR_NEW_OUTPUT": "0",  # the newer output prints tables even where it is told to be silent
}
SECONDS_TO_REACH = 5.0


def why_not() -> str | None:
    """Why Ray cannot be used here; None where it can."""
    if importlib.util.find_spec("ray") is None:
        return "Ray is not installed (pip install 'legroom[tune]')"
    return None


@contextlib.contextmanager
def connected(address: str | None, *, processors: int) -> Iterator[None]:
    """Ray is there inside: the caller's own, the cluster at `address`, or one of ours with so many processors."""
    if why_not() is not None:
        raise MissingExtra("Ray", "tune")
    with _environment(QUIET), _unsaid("ray.tune"):
        import ray

        if ray.is_initialized():
            yield
            return
        if address is not None:
            _check(address)
        try:
            ray.init(
                address=address or "local",  # "local": a cluster that happens to run here is not ours to fill
                include_dashboard=None if address else False,
                num_cpus=None if address else processors,
                num_gpus=None if address else 0,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=True,
            )
        except (ConnectionError, TimeoutError, RuntimeError, ValueError) as error:
            if address == "auto":
                raise _unreachable(address) from None
            if address is not None:
                raise UsageError(
                    f"something answers at {address}, but Ray cannot join it ({_first_line(error)}): give the port that `ray start` "
                    "printed, and Ray's token in RAY_AUTH_TOKEN where the cluster asks for one"
                ) from None
            raise UsageError(
                f"Ray could not be started here ({_first_line(error)}): use engine='local', which needs no Ray"
            ) from None
        try:
            yield
        finally:
            ray.shutdown()


def _check(address: str) -> None:
    """Ray waits long for a host that is not there, so it is asked for first."""
    if address == "auto":
        return
    if address.startswith("ray://"):
        raise UsageError(
            f"address='{address}' is Ray's client: start the search on a machine of the cluster and give address='auto', or give 'host:6379'"
        )
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdigit():
        raise UsageError(
            f"address='{address}' is none: write 'host:6379', or 'auto' for the cluster of this machine"
        )
    try:
        socket.create_connection((host, int(port)), timeout=SECONDS_TO_REACH).close()
    except (OSError, OverflowError):
        raise _unreachable(address) from None


def _unreachable(address: str) -> UsageError:
    where = "on this machine" if address == "auto" else f"at {address}"
    return UsageError(
        f"there is no Ray cluster {where}: start one with `ray start --head`, correct address=, or leave it out and Ray is started here"
    )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@contextlib.contextmanager
def _unsaid(name: str) -> Iterator[None]:
    """A logger is silent inside: Ray Tune prints a traceback of its own for a trial whose end the study tells in a sentence."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set inside, unless the user has set them otherwise; as it was afterwards."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
