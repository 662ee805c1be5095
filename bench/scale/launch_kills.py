"""Kills ranks during `legroom launch`. Measures the seconds until the launch exits, and checks the reported rank and
the weights after a restart.

    python -m bench.scale.launch_kills [--kills 10] [--ranks 2]

There are three kinds of ranks: they train together over gloo, sleep, or ignore SIGTERM. In each launch, a random rank
gets SIGKILL at a random time, from its first line (before it imports torch) to the middle of its steps. The launches
are repeated with `--max-restarts 1`, where training continues from its last checkpoint. The final weights must then
equal those of an undisturbed run bit for bit.
"""

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.lib.command_line import command_line
from bench.lib.table import print_table

LIMIT_SECONDS = 30
TRAINING = """
import os
print("process", os.getpid(), flush=True)
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
first = 0
if os.path.exists("checkpoint.pt"):
    saved = torch.load("checkpoint.pt")
    first = saved["step"]
    model.load_state_dict(saved["model"])
for step in range(first, 60):
    torch.manual_seed(step * 100 + dist.get_rank())
    optimizer.zero_grad()
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
    if dist.get_rank() == 0:
        torch.save({"step": step + 1, "model": model.state_dict()}, "half.pt")
        os.replace("half.pt", "checkpoint.pt")
    dist.barrier()
    if step == 0:
        print("training", flush=True)
dist.destroy_process_group()
"""
SLEEPING = """
import os, time
print("process", os.getpid(), flush=True)
print("training", flush=True)
time.sleep(300)
"""
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{SLEEPING}"


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--kills", type=int, default=10, help="of each kind")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random_source = random.Random(options.seed)
    rows = []
    for name, source in (("training", TRAINING), ("sleeping", SLEEPING), ("ignoring SIGTERM", STUBBORN)):
        kills = [kill_one(source, options.ranks, random_source) for _ in range(options.kills)]
        rows.append(_row(name, kills))
        print(*rows[-1], file=sys.stderr, flush=True)
    print_table(
        f"One of {options.ranks} ranks killed: seconds from the kill to the end of the launch",
        ("ranks", "kills", "right rank and exit code", "processes left", "seconds, median", "slowest"),
        rows,
    )
    undisturbed = weights_after(options.ranks, restarts=0, random_source=None)
    resumed = [
        weights_after(options.ranks, restarts=1, random_source=random_source) for _ in range(options.kills)
    ]
    same = sum(weights == undisturbed for weights in resumed)
    print(
        f"Killed once with --max-restarts 1: {same} of {options.kills} finished with the weights of an undisturbed run."
    )


@dataclass(frozen=True)
class Kill:
    """The result of one launch whose rank was killed."""

    seconds: float
    is_named: bool
    left: int


def kill_one(source: str, ranks: int, random_source: random.Random) -> Kill:
    with tempfile.TemporaryDirectory() as folder:
        launch = Launch(source, folder, ranks)
        victim = random_source.randrange(ranks)
        launch.kill_at_a_random_moment(victim, random_source)
        begun = time.monotonic()
        code = launch.process.wait(timeout=4 * LIMIT_SECONDS)
        seconds = time.monotonic() - begun
        is_named = code == 128 + signal.SIGKILL and f"Rank {victim} was killed by SIGKILL" in launch.text()
        return Kill(seconds, is_named, sum(map(_is_alive, launch.pids().values())))


def weights_after(ranks: int, *, restarts: int, random_source: random.Random | None) -> bytes:
    """Run a launch and return the weights of its last checkpoint. If `random_source` is given, one rank is killed."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        launch = Launch(TRAINING, folder, ranks, "--max-restarts", str(restarts))
        if random_source is not None:
            launch.kill_at_a_random_moment(random_source.randrange(ranks), random_source)
        if launch.process.wait(timeout=300) != 0:
            return b"failed"
        saved = torch.load(Path(folder) / "checkpoint.pt")
        return saved["step"].to_bytes(4) + b"".join(
            tensor.numpy().tobytes() for tensor in saved["model"].values()
        )


class Launch:
    """A running launch in its own folder."""

    def __init__(self, source: str, folder: str, ranks: int, *words: str) -> None:
        self._folder, self._ranks = Path(folder), ranks
        (self._folder / "train.py").write_text(source)
        command = [sys.executable, "-m", "legroom", "launch", "--nproc", str(ranks), *words, "train.py"]
        self._output = (self._folder / "output.txt").open("w")
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def text(self) -> str:
        return (self._folder / "output.txt").read_text()

    def pids(self) -> dict[int, int]:
        return {int(rank): int(pid) for rank, pid in re.findall(r"\[(\d+)\] process (\d+)", self.text())}

    def kill_at_a_random_moment(self, victim: int, random_source: random.Random) -> None:
        """Kill a rank at a random time. Half of the times are during startup, and half are during training."""
        sign = random_source.choice(("process", "training"))
        while self.text().count(f"] {sign}") < self._ranks:
            if self.process.poll() is not None:
                raise RuntimeError(f"the launch exited on its own:\n{self.text()}")
            time.sleep(0.05)
        time.sleep(random_source.uniform(0, 0.3))
        os.kill(self.pids()[victim], signal.SIGKILL)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _row(name: str, kills: list[Kill]) -> tuple[str, ...]:
    seconds = sorted(kill.seconds for kill in kills)
    return (
        name,
        str(len(kills)),
        str(sum(kill.is_named for kill in kills)),
        str(sum(kill.left for kill in kills)),
        f"{seconds[len(seconds) // 2]:.1f}",
        f"{seconds[-1]:.1f}",
    )


if __name__ == "__main__":
    main()
