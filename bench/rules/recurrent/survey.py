"""Records the allocations of cuDNN for recurrent layers in one forward and one backward pass, on a real GPU. Needs a GPU.

    python -m bench.rules.recurrent.survey OUT [--jobs 8] [--seconds 40]

cuDNN's sizes for reserve and workspace are not published, so the rules in `observe/cuda_rules/recurrent/sizes.py` were
fitted to these recordings. Needs torch, not Legroom. The program writes OUT/recurrent-<part>.jsonl.gz with one row per
layer: [kind, dtype, inputs, hidden, projected, layers, both directions, dropout, bias, batch first, training, batch,
steps, packed, forward, backward]. The last two are lists of bytes allocated (+) and freed (-) in order, or null if the
pass did not run.
"""

import gzip
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from bench.lib.command_line import command_line
from bench.rules.recordings import write_versions

LARGEST = 400 << 20
"""The maximum size in bytes of all gates of a recorded layer."""


class Request(NamedTuple):
    """One recurrent module and its batch."""

    kind: str = "LSTM"
    dtype: str = "float32"
    inputs: int = 256
    hidden: int = 256
    projected: int = 0
    layers: int = 1
    both: bool = False
    dropout: bool = False
    bias: bool = True
    batch_first: bool = True
    training: bool = True
    batch: int = 32
    steps: int = 50
    packed: bool = False


def main(argv: list[str]) -> int:
    parser = command_line(__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=40, help="stop after so many seconds")
    parser.add_argument("--part", default="")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.part:
        return survey(options.out, options.part, options.seconds)
    write_versions(options.out)
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "bench.rules.recurrent.survey", str(options.out), "--seconds", str(options.seconds), "--part", f"{i}/{options.jobs}"],
            env=dict(os.environ, OMP_NUM_THREADS="1"),
        )
        for i in range(options.jobs)
    ]  # fmt: skip
    return max(worker.wait() for worker in workers)


def survey(out: Path, part: str, seconds: float) -> int:
    index, count = map(int, part.split("/"))
    end = time.monotonic() + seconds
    record()
    with gzip.open(out / f"recurrent-{index}.jsonl.gz", "wt") as file:
        for request in requests()[index::count]:
            if time.monotonic() > end:
                print(f"part {index}: out of time", flush=True)
                break
            file.write(json.dumps([*request, *measure(request)]) + "\n")
    return 0


def requests() -> list[Request]:
    """Return all requests in a fixed random order, so that a run with a time limit records a representative sample."""
    rows = list(dict.fromkeys(request for request in (*sweeps(), *drawn(3500)) if fits(request)))
    random.Random(5).shuffle(rows)
    return rows


def fits(request: Request) -> bool:
    gates = 4 * request.hidden * request.steps * request.batch * request.layers * (1 + request.both)
    return gates * 4 <= LARGEST


HIDDEN = (8, 16, 20, 32, 40, 50, 64, 80, 96, 100, 120, 128, 150, 160, 192, 200, 224, 250, 256, 288, 300, 320, 350, 384,
          400, 448, 500, 512, 600, 640, 650, 700, 768, 800, 900, 1024, 1150, 1280, 1500, 2048)  # fmt: skip
INPUTS = (
    1,
    2,
    3,
    6,
    8,
    13,
    16,
    26,
    32,
    40,
    50,
    64,
    80,
    100,
    128,
    161,
    200,
    256,
    300,
    320,
    400,
    512,
    650,
    768,
    1024,
)
BATCHES = (
    1,
    2,
    3,
    4,
    6,
    8,
    10,
    12,
    16,
    20,
    24,
    32,
    40,
    48,
    50,
    64,
    80,
    96,
    100,
    128,
    160,
    192,
    256,
    384,
    512,
    1000,
)
STEPS = (
    1,
    2,
    4,
    7,
    10,
    12,
    16,
    20,
    24,
    28,
    30,
    35,
    40,
    50,
    60,
    64,
    70,
    80,
    100,
    128,
    150,
    200,
    250,
    256,
    300,
    400,
    512,
    800,
)


def sweeps() -> Iterator[Request]:
    """Yield layers in which one size varies at a time, which shows the factor of each size."""
    for dtype in ("float32", "float16", "bfloat16"):
        for kind in ("LSTM", "GRU", "RNN"):
            for layers, both in ((1, False), (1, True), (2, False), (2, True), (3, False)):
                base = Request(kind=kind, dtype=dtype, layers=layers, both=both)
                if dtype == "bfloat16" and (kind == "RNN" or layers == 3):
                    continue
                for hidden in HIDDEN:
                    yield base._replace(hidden=hidden)
                for batch in BATCHES[:: 1 if kind == "LSTM" else 2]:
                    yield base._replace(batch=batch)
                    yield base._replace(batch=batch, hidden=400)
                for steps in STEPS[:: 1 if kind == "LSTM" else 2]:
                    yield base._replace(steps=steps)
                for inputs in INPUTS[:: 1 if kind == "LSTM" else 3]:
                    yield base._replace(inputs=inputs)
                if kind == "LSTM":
                    for projected in (16, 32, 64, 100, 128, 200):
                        for hidden in (256, 300, 512, 1024):
                            for dropout in (False, True) if layers > 1 else (False,):
                                yield base._replace(projected=projected, hidden=hidden, dropout=dropout)
                    for batch in (4, 16, 64, 128):
                        yield base._replace(projected=96, hidden=512, batch=batch)
                        yield base._replace(projected=96, hidden=512, steps=batch)
                        yield base._replace(projected=96, hidden=512, inputs=batch)


def drawn(count: int) -> Iterator[Request]:
    """Yield layers with random common sizes."""
    rng = random.Random(31)
    for _ in range(count):
        kind = rng.choice(("LSTM", "LSTM", "LSTM", "GRU", "GRU", "RNN"))
        hidden = rng.choice(HIDDEN)
        layers = rng.choice((1, 1, 2, 2, 2, 3, 4))
        smaller = [size for size in (16, 32, 50, 64, 128, 200, 256, 320, 512) if size < hidden]
        projects = kind == "LSTM" and bool(smaller) and rng.random() < 0.15
        yield Request(
            kind=kind,
            dtype=rng.choice(("float32", "float32", "float16", "bfloat16")),
            inputs=rng.choice((*INPUTS, hidden, hidden)),
            hidden=hidden,
            projected=rng.choice(smaller) if projects else 0,
            layers=layers,
            both=rng.random() < 0.4,
            dropout=layers > 1 and rng.random() < 0.5,
            bias=rng.random() < 0.95,
            batch_first=rng.random() < 0.7,
            training=rng.random() < 0.85,
            batch=rng.choice(BATCHES),
            steps=rng.choice(STEPS),
            packed=rng.random() < 0.2,
        )


def measure(request: Request) -> list[list[int] | None]:
    """Return the bytes that both passes allocated and freed. Weights and input already exist."""
    try:
        layer, given = build(request)
        forward, out = recorded(lambda: layer(given)[0])
        result = out.data if request.packed else out
        if not request.training:
            return [forward, None]
        gradient = torch.empty_like(result)
        backward, _ = recorded(lambda: result.backward(gradient))
        return [forward, backward]
    except RuntimeError as error:
        print(request, str(error)[:120], flush=True)
        torch.cuda.empty_cache()
        return [None, None]


def build(request: Request) -> tuple[nn.Module, Any]:
    dtype = getattr(torch, request.dtype)
    options: dict[str, Any] = {"proj_size": request.projected} if request.projected else {}
    layer: nn.Module = getattr(nn, request.kind)(
        request.inputs,
        request.hidden,
        request.layers,
        bias=request.bias,
        batch_first=request.batch_first,
        dropout=0.2 if request.dropout else 0.0,
        bidirectional=request.both,
        device="cuda",
        dtype=dtype,
        **options,
    ).train(request.training)
    shape = (request.batch, request.steps) if request.batch_first else (request.steps, request.batch)
    given: Any = torch.empty(*shape, request.inputs, device="cuda", dtype=dtype).requires_grad_()
    if request.packed:
        rng = random.Random(request.batch)
        lengths = [request.steps, *(rng.randint(1, request.steps) for _ in range(request.batch - 1))]
        given = pack_padded_sequence(
            given, torch.tensor(lengths), batch_first=request.batch_first, enforce_sorted=False
        )
    return layer, given


def recorded(action: Any) -> tuple[list[int], Any]:
    """Return the bytes allocated (+) and freed (-) during `action`, in order, and its result."""
    torch.cuda.memory._record_memory_history(enabled=None)
    record()
    result = action()
    torch.cuda.synchronize()
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    if torch.cuda.memory_reserved() > 6 << 30:
        torch.cuda.empty_cache()
    return [
        event["size"] if event["action"] == "alloc" else -event["size"]
        for event in events
        if event["action"] in ("alloc", "free_completed")
    ], result


def record() -> None:
    torch.cuda.memory._record_memory_history(max_entries=100_000, context=None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
