"""What a rank is told by the launcher, through its environment: where to leave its record, and which GPUs it has."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from legroom.gpus.catalog import GpuSpec, find_gpu
from legroom.scale.launching.folder import RankFiles, RunFolder
from legroom.scale.launching.plan import LaunchPlan

ORDER = "LEGROOM_LAUNCH"
ATTEMPT = "LEGROOM_ATTEMPT"
"""Which attempt it belongs to: torch's own count leaves out restarts for nodes that came or went."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One rank's part, the same for all ranks of a node."""

    folder: str
    gpus: tuple[GpuSpec, ...]
    """Virtual GPUs; empty: what the machine has."""
    watch: bool
    options: tuple[str, ...]
    """The words of the launch, for the next command that a report names."""

    @classmethod
    def from_environment(cls) -> "Order":
        facts = json.loads(os.environ.pop(ORDER))
        return cls(
            folder=facts["folder"],
            gpus=tuple(map(find_gpu, facts["gpus"])),
            watch=facts["watch"],
            options=tuple(facts["options"]),
        )

    def files(self) -> RankFiles:
        return RunFolder(Path(self.folder)).files(rank(), int(os.environ.get(ATTEMPT, "0")))


def rank() -> int:
    """Of this process among all."""
    return int(os.environ["RANK"])


def environment(plan: LaunchPlan, folder: RunFolder) -> Mapping[str, str]:
    """What a rank finds in its environment beside what the rendezvous gives it."""
    order = Order(
        folder=str(folder.path.absolute()),
        gpus=plan.gpus,
        watch=bool(plan.gpus) or (plan.watch and plan.real_gpus > 0),  # a virtual GPU counts anyway
        options=tuple(plan.options),
    )
    return {ORDER: json.dumps({**asdict(order), "gpus": [gpu.name for gpu in plan.gpus]}), **plan.settings}


def rank_command(plan: LaunchPlan) -> list[str]:
    """What is started for every rank."""
    return [sys.executable, "-u", "-m", "legroom.run.launched_rank", *plan.script.command_line]
