"""Records every allocator event of small training runs on a real GPU. In such runs, single segments of 2 and 20 MiB
matter. Needs a GPU.

    python -m bench.accuracy.small_runs OUT [--jobs 8]

Each run has three steps and its own process. The program writes OUT/small_runs.jsonl.gz, with one row per run. A row
contains the peaks and the allocator's events as [action, bytes, address, source lines]. The program needs only torch.
Runs with `Guard` need Legroom and are skipped without it.
"""

import concurrent.futures
import gzip
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.lib.command_line import command_line

Step = Callable[[], Any]


def _perceptron(width: int, batch: int, *, guarded: bool = False) -> Step:
    model = nn.Sequential(
        nn.Linear(32, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
    ).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x = torch.randn(batch, 32, device="cuda")
    y = x[:, :1].sin()

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(model(x), y)

    if guarded:
        import legroom

        guard = legroom.Guard(model, optimizer, cache_sizes=False)
        return lambda: guard.step(loss_of, x, y).item()
    return _plain(lambda: loss_of(x, y), optimizer)


def _plain(loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer) -> Step:
    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def _classifier(model: nn.Module, *shape: int, classes: int = 10, half: bool = False) -> Step:
    model = model.cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x = torch.randn(*shape, device="cuda")
    y = torch.randint(0, classes, shape[:1], device="cuda")

    def loss() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            return F.cross_entropy(model(x), y)

    return _plain(loss, optimizer)


def _lenet(edge: int, side: int, padding: int = 0) -> nn.Module:
    shrunk = ((side + 2 * padding - 4) // 2 - 4) // 2
    return nn.Sequential(
        nn.Conv2d(edge, 6, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * shrunk**2, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def _digits() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(),
        nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10), nn.LogSoftmax(1),
    )  # fmt: skip


def _atari_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 6),
    )  # fmt: skip


class _SequenceClassifier(nn.Module):
    """Classifies a token sequence by the last state of a recurrent layer."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20_000, 128)
        self.layer = kind(128, 128, batch_first=True)
        self.head = nn.Linear(128, 2)

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.layer(self.embedding((x.abs() * 1000).long() % 20_000))[0]
        return self.head(states[:, -1])


class _Encoder(nn.Module):
    """A small transformer classifier."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x).mean(1))


RUNS: dict[str, Callable[[], Step]] = {
    "perceptron 1024, batch 4096": lambda: _perceptron(1024, 4096),
    "perceptron 1024, batch 4096, guarded": lambda: _perceptron(1024, 4096, guarded=True),
    "perceptron 1024, batch 2048": lambda: _perceptron(1024, 2048),
    "perceptron 256, batch 4096": lambda: _perceptron(256, 4096),
    "perceptron 256, batch 64": lambda: _perceptron(256, 64),
    "perceptron 1024, batch 65536": lambda: _perceptron(1024, 65536),
    "one linear layer": lambda: _classifier(nn.Linear(1024, 1024), 4096, 1024, classes=1024),
    "one linear layer, half": lambda: _classifier(nn.Linear(1024, 1024), 4096, 1024, classes=1024, half=True),
    "three linear layers, half": lambda: _classifier(nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)), 128, 784, half=True),
    "lenet, digits": lambda: _classifier(_lenet(1, 28, 2), 64, 1, 28, 28),
    "lenet, pictures": lambda: _classifier(_lenet(3, 32), 4, 3, 32, 32),
    "lenet, pictures, batch 128": lambda: _classifier(_lenet(3, 32), 128, 3, 32, 32),
    "digits, batch 64": lambda: _classifier(_digits(), 64, 1, 28, 28),
    "digits, batch 128": lambda: _classifier(_digits(), 128, 1, 28, 28),
    "digits, batch 64, half": lambda: _classifier(_digits(), 64, 1, 28, 28, half=True),
    "player, batch 32": lambda: _classifier(_atari_network(), 32, 4, 84, 84, classes=6),
    "player, batch 256": lambda: _classifier(_atari_network(), 256, 4, 84, 84, classes=6),
    "reader, LSTM": lambda: _classifier(_SequenceClassifier(nn.LSTM), 32, 100, classes=2),
    "reader, GRU": lambda: _classifier(_SequenceClassifier(nn.GRU), 32, 100, classes=2),
    "encoder": lambda: _classifier(_Encoder(), 32, 64, 128),
    "encoder, half": lambda: _classifier(_Encoder(), 32, 64, 128, half=True),
}  # fmt: skip


def main(argv: list[str]) -> int:
    parser = command_line(__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--one", choices=RUNS)
    options = parser.parse_args(argv)
    if options.one:
        print(json.dumps(record(options.one)))
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    names = [name for name in RUNS if "guarded" not in name or importlib.util.find_spec("legroom")]
    with (
        gzip.open(options.out / "small_runs.jsonl.gz", "wt") as file,
        concurrent.futures.ThreadPoolExecutor(options.jobs) as pool,
    ):
        for row in pool.map(in_fresh_process, names):
            file.write(json.dumps(row) + "\n")
            result = row.get("error") or f"{row['allocated'] / 2**20:.1f} {row['reserved'] / 2**20:.1f} MiB"
            print(row["name"], result, flush=True)
    return 0


def in_fresh_process(name: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.accuracy.small_runs", "-", "--one", name]
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    if done.returncode:
        return {"name": name, "error": (done.stderr.strip() or "?").splitlines()[-1][:300]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def record(name: str) -> dict[str, Any]:
    torch.cuda.memory._record_memory_history(max_entries=500_000, context="alloc", stacks="python")
    step = RUNS[name]()
    torch.cuda.synchronize()
    steps = []
    for _ in range(3):
        step()
        torch.cuda.synchronize()
        steps.append([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()])
    events = [
        [event["action"], event["size"], event["addr"], _source_lines(event.get("frames") or [])]
        for event in torch.cuda.memory._snapshot()["device_traces"][0]
        if event["action"] != "free_requested"
    ]
    allocated, reserved = steps[-1]
    return {"name": name, "allocated": allocated, "reserved": reserved, "steps": steps, "events": events}


def _source_lines(frames: list[dict[str, Any]]) -> str:
    """Return the two innermost Python lines of the stack."""
    return " < ".join(
        f"{Path(frame['filename']).name}:{frame['line']} {frame['name']}" for frame in frames[:2]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
