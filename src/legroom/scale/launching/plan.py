"""What is to be launched: how many ranks, on how many nodes, on which GPUs, and the same as a torchrun command.

Everything that can be known to be wrong is refused here, before any process starts.
"""

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from legroom.errors import UsageError
from legroom.gpus.catalog import GpuSpec
from legroom.gpus.machine import processors
from legroom.observe.script import Script

IN_ONE_PROCESS = ("dp", "split")
"""Strategies that drive several GPUs from one process: there is one rank, whatever the number of GPUs."""
DEFAULT_PORT = 29400
STRATEGY = "LEGROOM_STRATEGY"
"""Read by `legroom.parallel`."""
Engine = Literal["torchrun", "ray"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """A launch that can be carried out, as one node sees it."""

    script: Script
    nproc: int
    """Ranks on this node."""
    gpus: tuple[GpuSpec, ...] = ()
    """Virtual GPUs of this node; every rank sees them all and uses its own. Empty: none."""
    real_gpus: int = 0
    """Real ones that are used instead; 0: the ranks compute on the CPU."""
    nodes: tuple[int, int] = (1, 1)
    """The fewest to start with, and the most."""
    rendezvous: str | None = None
    """`host:port` where nodes meet; None: this machine alone, on a free port."""
    wait: float = 600
    """Seconds that nodes wait for one another."""
    strategy: str | None = None
    max_restarts: int = 0
    threads: int = 1
    """`OMP_NUM_THREADS` of each rank."""
    watch: bool = True
    """Whether a rank with a real GPU records what happens to its memory."""
    engine: Engine = "torchrun"

    @property
    def world_size(self) -> int:
        """Ranks of all nodes, where all are as this one."""
        return self.nodes[1] * self.nproc

    @property
    def settings(self) -> dict[str, str]:
        """What ranks and torch's agent find in their environment, whoever starts them."""
        settings = {"OMP_NUM_THREADS": str(self.threads)}
        if self.strategy is not None:
            settings[STRATEGY] = self.strategy
        if self.max_restarts or self.nodes[0] < self.nodes[1]:
            # Ranks that start again would find the addresses of those before them in the store that the agent keeps
            # for all attempts (torch 2.13), and wait for the dead. With this every attempt has a store of its own.
            settings["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        return settings

    @property
    def torchrun(self) -> str:
        """The command that does the same with torchrun, in one line for a shell."""
        settings = {"LEGROOM": _names(self.gpus), **self.settings} if self.gpus else self.settings
        words = [
            f"{name}={shlex.quote(value)}"
            for name, value in settings.items()
            if (name, value) != ("OMP_NUM_THREADS", "1")  # as torchrun sets it itself
        ]
        words.append("torchrun")
        if self.rendezvous is None:
            words.append("--standalone")
        else:
            fewest, most = self.nodes
            words += [
                f"--nnodes={most if fewest == most else f'{fewest}:{most}'}",
                "--rdzv-backend=c10d",
                f"--rdzv-endpoint={self.rendezvous}",
                f"--rdzv-id={shlex.quote(self.run_id)}",
            ]
        words.append(f"--nproc-per-node={self.nproc}")
        if self.max_restarts:
            words.append(f"--max-restarts={self.max_restarts}")
        return " ".join([*words, shlex.join(self.script.command_line)])

    @property
    def run_id(self) -> str:
        """What nodes of the same launch have in common."""
        return self.script.stem

    @property
    def options(self) -> list[str]:
        """Legroom's own words that another launch of the same kind needs."""
        fewest, most = self.nodes
        words = ["--nproc", str(self.nproc)]
        if self.gpus:
            same = len(set(self.gpus)) == 1
            words = ["--gpu", _names(self.gpus[:1] if same else self.gpus), *words]
        if self.rendezvous is not None:
            words += ["--nodes", str(most) if fewest == most else f"{fewest}:{most}"]
            words += ["--rendezvous", self.rendezvous]
        elif most > 1:
            words += ["--nodes", str(most)]
        if self.engine != "torchrun":
            words += ["--engine", self.engine]
        if self.strategy is not None:
            words += ["--strategy", self.strategy]
        if self.max_restarts:
            words += ["--max-restarts", str(self.max_restarts)]
        return words


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
    engine: Engine = "torchrun",
) -> LaunchPlan:
    """Decide what was left open and refuse what cannot be; `gpus` are virtual, `real_gpus` counts what the machine has."""
    script.check()
    fewest, most = _parse_nodes(nodes)
    if engine == "ray" and rendezvous is not None:
        raise UsageError("nodes of a Ray cluster have met already: leave --rendezvous away with --engine ray")
    if engine == "torchrun" and rendezvous is None and most > 1:
        raise UsageError(
            f"{most} nodes need a place to meet: give all of them the same --rendezvous HOST:{DEFAULT_PORT}, "
            "where HOST is one of them"
        )
    ranks = _ranks(nproc, gpus, real_gpus, strategy)
    if engine == "torchrun":  # a Ray cluster has GPUs elsewhere too
        _check_real_gpus(ranks, 0 if gpus else real_gpus)
    return LaunchPlan(
        script=script,
        nproc=ranks,
        gpus=_one_each(gpus, ranks, strategy),
        real_gpus=0 if gpus else real_gpus,
        nodes=(fewest, most),
        rendezvous=None if rendezvous is None else _parse_place(rendezvous),
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
                f"strategy {strategy} drives all GPUs from one process: leave --nproc away, "
                "or use --strategy ddp for one process per GPU"
            )
        return 1
    ranks = nproc or len(gpus) or real_gpus or 1
    if len(gpus) > 1 and ranks > len(gpus):
        raise UsageError(
            f"{ranks} ranks need {ranks} GPUs and --gpu names {len(gpus)}: name one size for all, or one for each rank"
        )
    return ranks


def _check_real_gpus(ranks: int, there: int) -> None:
    if 0 < there < ranks:
        raise UsageError(
            f"{ranks} ranks need {ranks} GPUs and this machine has {there}: use --nproc {there}, "
            "try it on virtual GPUs with --gpu 8GiB, or on the CPU with CUDA_VISIBLE_DEVICES= in front"
        )


def _one_each(gpus: Sequence[GpuSpec], ranks: int, strategy: str | None) -> tuple[GpuSpec, ...]:
    """One size stands for a GPU of that size for each rank."""
    if len(gpus) == 1 and strategy not in IN_ONE_PROCESS:
        return tuple(gpus) * ranks
    return tuple(gpus)


def _names(gpus: Sequence[GpuSpec]) -> str:
    """As the command line accepts them."""
    return ",".join(gpu.name for gpu in gpus)


def _parse_nodes(text: str) -> tuple[int, int]:
    """`4`, or `2:4` for as many as come, at least two."""
    fewest, colon, most = text.partition(":")
    try:
        bounds = int(fewest), int(most if colon else fewest)
    except ValueError:
        bounds = 0, 0
    if not 1 <= bounds[0] <= bounds[1]:
        raise UsageError(f"'{text}' is no number of nodes: write --nodes 4, or --nodes 2:4 for two to four")
    return bounds


def _parse_place(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon:
        host, port = text, str(DEFAULT_PORT)
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(
            f"'{text}' is no place to meet: write it like node1:{DEFAULT_PORT}, a host and a port"
        )
    return f"{host}:{port}"


def _threads(ranks: int) -> int:
    """What the user says, else the cores divided among the ranks: torch would start a thread per core in each."""
    wish = os.environ.get("OMP_NUM_THREADS", "")
    if wish.isdecimal() and int(wish) > 0:
        return int(wish)
    return max(1, processors() // ranks)
