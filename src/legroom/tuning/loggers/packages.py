"""Functions for TensorBoard and Weights & Biases that the loggers of studies and of `legroom run` share."""

import importlib
import importlib.util
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from legroom.errors import MissingExtra
from legroom.log import log

if TYPE_CHECKING:
    from wandb import Run

SECONDS_TO_START = 120.0
"""The timeout in seconds for the start of wandb's service process. The timeout is long because trials may use all CPU
cores."""


class FailSafeLog:
    """A log that raises no errors. The first error is reported, and the log ends."""

    name: str
    subject: str
    """The activity that continues if the log fails, for example `The study`."""

    def __init__(self) -> None:
        self._is_broken = False

    def _try(self, write: Callable[[], Any]) -> None:
        if self._is_broken:
            return
        try:
            write()
        except Exception as error:  # a full disk, an unreachable server, an error in the library
            self._is_broken = True
            reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            log.warning(
                "%s could not be written (%s). %s continues without this log.",
                self.name,
                reason,
                self.subject,
            )


def check_tensorboard() -> None:
    if not any(map(importlib.util.find_spec, ("tensorboard", "tensorboardX"))):
        raise MissingExtra("TensorBoard", "log")


def summary_writer(folder: Path) -> Any:
    try:
        module = importlib.import_module("torch.utils.tensorboard")
    except ImportError:
        module = importlib.import_module("tensorboardX")
    return module.SummaryWriter(str(folder))


def check_wandb() -> None:
    if importlib.util.find_spec("wandb") is None:
        raise MissingExtra("wandb", "log")


def start_wandb_run(
    folder: Path,
    *,
    name: str | None,
    mode: str | None = None,
    config: Mapping[str, Any] | None = None,
    **options: Any,
) -> "Run":
    """Start a wandb run in `folder`/wandb that is independent of other runs in this process. If `mode` is None, the
    environment variable `WANDB_MODE` determines the mode. If it is not set, the run is offline.
    """
    import wandb

    folder.mkdir(parents=True, exist_ok=True)
    chosen: Any = mode or os.environ.get("WANDB_MODE", "offline")
    return wandb.init(
        name=name,
        dir=str(folder),
        mode=chosen,
        config=dict(config or {}),
        reinit="create_new",
        settings=wandb.Settings(
            silent=True, console="off", disable_git=True, save_code=False, x_service_wait=SECONDS_TO_START
        ),
        **options,
    )
