"""The plan of a launch: the numbers of ranks and nodes, their GPUs, and the equivalent torchrun command.

This module rejects invalid combinations of options before any process starts.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from legroom import shell
from legroom.errors import UsageError
from legroom.gpus.catalog import GpuSpec
from legroom.gpus.machine import processors
from legroom.observe.script import Script

IN_ONE_PROCESS = ("dp", "split")
"""Strategies that use several GPUs in one process. The launch has one rank, regardless of the number of GPUs."""
DEFAULT_PORT = 29400
STRATEGY_VARIABLE = "LEGROOM_STRATEGY"
LaunchEngineName = Literal["torchrun", "ray"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """The validated settings of a launch on one node."""

    script: Script
    nproc: int
    gpus: tuple[GpuSpec, ...] = ()
    """The virtual GPUs on this node, if any. Every rank sees all virtual GPUs, and uses the virtual GPU whose index is
    its local rank.
    """
    real_gpus: int = 0
    """The number of real GPUs that are used if there are no virtual GPUs. If the number is 0, the ranks run on the CPU.
    """
    nodes: tuple[int, int] = (1, 1)
    rendezvous: str | None = None
    """The address (`host:port`) at which the nodes connect. If None, the launch uses only this machine and a free port."""
    wait: float = 600
    strategy: str | None = None
    max_restarts: int = 0
    threads: int = 1
    watch: bool = True
    engine: LaunchEngineName = "torchrun"

    @property
    def world_size(self) -> int:
        """The number of ranks on all nodes. All nodes are assumed to have as many ranks as this node."""
        return self.nodes[1] * self.nproc

    @property
    def has_store_per_attempt(self) -> bool:
        """Whether every attempt must have its own store. In torch 2.13, the agent uses one store for all attempts.
        Restarted ranks would find the addresses of the previous ranks in this store and wait for them.
        """
        return bool(self.max_restarts) or self.nodes[0] < self.nodes[1]

    @property
    def settings(self) -> dict[str, str]:
        settings = {"OMP_NUM_THREADS": str(self.threads)}
        if self.strategy is not None:
            settings[STRATEGY_VARIABLE] = self.strategy
        if self.has_store_per_attempt:
            settings["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        return settings

    @property
    def torchrun(self) -> str:
        settings = {"LEGROOM": _names(self.gpus), **self.settings} if self.gpus else self.settings
        # OMP_NUM_THREADS=1 is torchrun's own default.
        variables = {
            name: value for name, value in settings.items() if (name, value) != ("OMP_NUM_THREADS", "1")
        }
        arguments = ["torchrun"]
        if self.rendezvous is None:
            arguments.append("--standalone")
        else:
            minimum, maximum = self.nodes
            arguments += [
                f"--nnodes={maximum if minimum == maximum else f'{minimum}:{maximum}'}",
                "--rdzv-backend=c10d",
                f"--rdzv-endpoint={self.rendezvous}",
                f"--rdzv-id={shell.quote(self.run_id)}",
            ]
        arguments.append(f"--nproc-per-node={self.nproc}")
        if self.max_restarts:
            arguments.append(f"--max-restarts={self.max_restarts}")
        return shell.with_variables(variables, " ".join([*arguments, shell.join(self.script.command_line)]))

    @property
    def run_id(self) -> str:
        return self.script.stem

    @property
    def options(self) -> list[str]:
        """The options of `legroom launch` that repeat this launch."""
        minimum, maximum = self.nodes
        arguments = ["--nproc", str(self.nproc)]
        if self.gpus:
            same = len(set(self.gpus)) == 1
            arguments = ["--gpu", _names(self.gpus[:1] if same else self.gpus), *arguments]
        if self.rendezvous is not None:
            arguments += ["--nodes", str(maximum) if minimum == maximum else f"{minimum}:{maximum}"]
            arguments += ["--rendezvous", self.rendezvous]
        elif maximum > 1:
            arguments += ["--nodes", str(maximum)]
        if self.engine != "torchrun":
            arguments += ["--engine", self.engine]
        if self.strategy is not None:
            arguments += ["--strategy", self.strategy]
        if self.max_restarts:
            arguments += ["--max-restarts", str(self.max_restarts)]
        return arguments


def plan_launch(
    script: Script,
    *,
    nproc: int | None,
    gpus: Sequence[GpuSpec],
    real_gpus: int,
    nodes: str = "1",
    rendezvous: str | None = None,
    wait: float = 600,
    strategy: str | None = None,
    max_restarts: int = 0,
    watch: bool = True,
    engine: LaunchEngineName = "torchrun",
) -> LaunchPlan:
    """Create a plan with default values for options that are not set, and reject invalid combinations. `gpus` are
    virtual GPUs.
    """
    script.check()
    minimum, maximum = _parse_nodes(nodes)
    if engine == "ray" and rendezvous is not None:
        raise UsageError(
            "The nodes of a Ray cluster are already connected. Omit `--rendezvous` with `--engine ray`."
        )
    if engine == "torchrun" and rendezvous is None and maximum > 1:
        raise UsageError(
            f"{maximum} nodes need a common address to connect. Add the same `--rendezvous "
            f"HOST:{DEFAULT_PORT}` on all nodes, where HOST is one of the nodes."
        )
    ranks = _ranks(nproc, gpus, real_gpus, strategy)
    if engine == "torchrun":  # a Ray cluster has GPUs elsewhere too
        _check_real_gpus(ranks, 0 if gpus else real_gpus)
    return LaunchPlan(
        script=script,
        nproc=ranks,
        gpus=_one_per_rank(gpus, ranks, strategy),
        real_gpus=0 if gpus else real_gpus,
        nodes=(minimum, maximum),
        rendezvous=None if rendezvous is None else _parse_rendezvous(rendezvous),
        wait=wait,
        strategy=strategy,
        max_restarts=max_restarts,
        threads=_threads(ranks),
        watch=watch,
        engine=engine,
    )


def _ranks(nproc: int | None, gpus: Sequence[GpuSpec], real_gpus: int, strategy: str | None) -> int:
    if strategy in IN_ONE_PROCESS:
        if nproc is not None and nproc > 1:
            raise UsageError(
                f"Strategy {strategy} uses all GPUs in one process. Omit `--nproc`, "
                "or use `--strategy ddp` for one process per GPU."
            )
        return 1
    ranks = nproc or len(gpus) or real_gpus or 1
    if len(gpus) > 1 and ranks > len(gpus):
        raise UsageError(
            f"{ranks} ranks need {ranks} GPUs, but `--gpu` lists {len(gpus)}. Pass one GPU for all ranks, or "
            "one GPU for each rank."
        )
    return ranks


def _check_real_gpus(ranks: int, available: int) -> None:
    if 0 < available < ranks:
        raise UsageError(
            f"{ranks} ranks need {ranks} GPUs, but this machine has {available}. Use `--nproc {available}`, "
            "virtual GPUs (`--gpu 8GiB`), or the CPU (`CUDA_VISIBLE_DEVICES= legroom launch ...`)."
        )


def _one_per_rank(gpus: Sequence[GpuSpec], ranks: int, strategy: str | None) -> tuple[GpuSpec, ...]:
    """Return one GPU per rank. A single GPU is repeated for every rank."""
    if len(gpus) == 1 and strategy not in IN_ONE_PROCESS:
        return tuple(gpus) * ranks
    return tuple(gpus)


def _names(gpus: Sequence[GpuSpec]) -> str:
    return ",".join(gpu.name for gpu in gpus)


def _parse_nodes(text: str) -> tuple[int, int]:
    """Parse a number of nodes such as `4`, or a range such as `2:4` for two to four nodes."""
    minimum, colon, maximum = text.partition(":")
    try:
        bounds = int(minimum), int(maximum if colon else minimum)
    except ValueError:
        bounds = 0, 0
    if not 1 <= bounds[0] <= bounds[1]:
        raise UsageError(
            f"`{text}` is not a valid number of nodes. Use `--nodes 4`, or `--nodes 2:4` for two to four "
            "nodes."
        )
    return bounds


def _parse_rendezvous(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon:
        host, port = text, str(DEFAULT_PORT)
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(
            f"`{text}` is not a valid address. Use a host and a port, such as `node1:{DEFAULT_PORT}`."
        )
    return f"{host}:{port}"


def _threads(ranks: int) -> int:
    """Return the user's setting of `OMP_NUM_THREADS`, or the number of cores divided by the number of ranks. By
    default, torch would start one thread per core in each rank.
    """
    setting = os.environ.get("OMP_NUM_THREADS", "")
    if setting.isdecimal() and int(setting) > 0:
        return int(setting)
    return max(1, processors() // ranks)
