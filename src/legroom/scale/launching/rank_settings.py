"""The settings that the launcher passes to a rank through environment variables, such as its folder and its GPUs."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from legroom.gpus.catalog import GpuSpec, find_gpu
from legroom.scale.launching.folder import LaunchFolder, RankFiles
from legroom.scale.launching.plan import LaunchPlan
from legroom.scale.launching.rendezvous import interface_of, local_address

SETTINGS_VARIABLE = "LEGROOM_LAUNCH"
ATTEMPT_VARIABLE = "LEGROOM_ATTEMPT"
"""The environment variable for the index of the attempt. PyTorch's restart count is not used, because it does not
include restarts after nodes were added or removed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSettings:
    """The settings that all ranks of a node share."""

    folder: str
    gpus: tuple[GpuSpec, ...]
    """The virtual GPUs. The tuple is empty if real GPUs are used."""
    watch: bool
    options: tuple[str, ...]

    @classmethod
    def from_environment(cls) -> "RankSettings":
        settings = json.loads(os.environ.pop(SETTINGS_VARIABLE))
        return cls(
            folder=settings["folder"],
            gpus=tuple(map(find_gpu, settings["gpus"])),
            watch=settings["watch"],
            options=tuple(settings["options"]),
        )

    def files(self) -> RankFiles:
        return LaunchFolder(Path(self.folder)).files(rank(), int(os.environ.get(ATTEMPT_VARIABLE, "0")))


def rank() -> int:
    return int(os.environ["RANK"])


def environment(plan: LaunchPlan, folder: LaunchFolder) -> Mapping[str, str]:
    settings = RankSettings(
        folder=str(folder.path.absolute()),
        gpus=plan.gpus,
        watch=bool(plan.gpus) or (plan.watch and plan.real_gpus > 0),  # a virtual GPU is always recorded
        options=tuple(plan.options),
    )
    interface = interface_of(local_address(plan.rendezvous)) if plan.rendezvous else None
    return {
        # Without this setting, gloo uses the address of the host name, which is often 127.0.0.1.
        **({"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", interface)} if interface else {}),
        SETTINGS_VARIABLE: json.dumps({**asdict(settings), "gpus": [gpu.name for gpu in plan.gpus]}),
        **plan.settings,
    }


def rank_command(plan: LaunchPlan) -> list[str]:
    return [sys.executable, "-u", "-m", "legroom.run.launched_rank", *plan.script.command_line]
