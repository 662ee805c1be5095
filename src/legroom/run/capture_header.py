"""The header of a capture: the command, the versions and the devices."""

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import torch

from legroom import __version__
from legroom.diagnose.report.command import RunCommand
from legroom.memory.live.folder import process_identity
from legroom.observe.session import DeviceInfo

_ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def capture_header(command: RunCommand, devices: Sequence[DeviceInfo]) -> dict[str, Any]:
    return {
        **command.as_header(),
        "folder": os.getcwd(),
        "recorder": process_identity(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "legroom": __version__,
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "allocator": next((os.environ[name] for name in _ALLOCATOR_VARIABLES if os.environ.get(name)), ""),
        # The UUID identifies a machine, and captures are shared.
        "devices": [
            {key: value for key, value in asdict(device).items() if key != "uuid"} for device in devices
        ],
    }
