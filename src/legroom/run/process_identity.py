"""Describes this process in its live file: command, script, folder and rank. This module does not import torch."""

import os
import time
from collections.abc import Mapping
from typing import Any

from legroom.diagnose.report.command import RunCommand
from legroom.memory.live.status import RunStatus


def describe_process(header: Mapping[str, Any], *, started: float, **values: Any) -> RunStatus:
    """Return the status of this process. `header` is the header of the capture. `values` are the other fields of the
    status.
    """
    return RunStatus(
        pid=os.getpid(),
        **identity(header),
        started=started,
        updated=time.time(),
        rank=header.get("rank"),
        world_size=header.get("world_size"),
        **values,
    )


def identity(header: Mapping[str, Any]) -> dict[str, Any]:
    command = RunCommand.from_header(header)
    return {
        "verb": command.verb,
        "script": command.target[-1] if command.target else "",
        "command": command.text,
        "folder": str(header.get("folder", "")),
    }
