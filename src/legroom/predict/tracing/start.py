"""Starts the process that traces a script. Imports no torch: that process imports it meanwhile, and so can the caller."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Literal

from legroom.gpus.catalog import GpuSpec
from legroom.observe.cuda_rules.convolution.cudnn_process import check_setting
from legroom.observe.script import Script
from legroom.predict.tracing.worker_process import StandingBy, start_standing_by


def start(
    script: Script,
    gpu: GpuSpec,
    *,
    mode: Literal["fake", "cpu"] = "fake",
    steps: int = 2,
    environment: Mapping[str, str] | None = None,
) -> StandingBy:
    """Run `script` up to its first batch, in a process that then takes requests (see `tracing_process`).

    `environment`: what it finds there beside ours.
    """
    check_setting()
    order = {
        "script": script.name, "arguments": list(script.arguments), "is_module": script.is_module,
        "gpu": asdict(gpu), "mode": mode, "steps": steps,
    }  # fmt: skip
    return start_standing_by("legroom.predict.tracing.main", order, environment)
