"""Records the events of the real CUDA caching allocator. Tests compare the simulated allocator with these recordings.

    python tests/gpu/record_histories.py FOLDER [CASE ...]

The program needs only a GPU and torch (2.11 or later). It needs neither Legroom nor network access nor data. Each case
runs in its own process with its own PYTORCH_CUDA_ALLOC_CONF, because torch reads that variable once. A case is written
to FOLDER/h200_<case>.json.gz, where the prefix is the name of the device. The file contains the settings, the rows of
the allocator's history as [action, address, size, stream], both peaks, memory_stats() and the segments at the end, and
the message of every OutOfMemoryError.

The allocator's history does not contain the calls between two allocations. Two of these calls affect later events, so
`Recorder.mark` adds rows for them: `empty_cache` and `set_limit` (the size is the limit in bytes).
"""

import concurrent.futures
import gc
import gzip
import json
import math
import os
import random
import re
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

MiB = 1 << 20
GiB = 1 << 30
MAX_ROWS = 20_000


class Recorder:
    """The history of one process, with marks between the allocator's rows."""

    def __init__(self) -> None:
        torch.cuda.init()
        torch.cuda.memory._record_memory_history(max_entries=1_000_000, context=None)
        self.marks: list[list[Any]] = []
        self.errors: list[dict[str, Any]] = []
        self.limit: int | None = None

    def mark(self, action: str, size: int = 0) -> None:
        """Insert a mark. The allocator adds a `snapshot` row for every snapshot, so the n-th such row is the n-th mark."""
        torch.cuda.memory._snapshot()
        self.marks.append([action, 0, size, 0])

    def empty_cache(self) -> None:
        self.mark("empty_cache")
        torch.cuda.empty_cache()

    def set_limit(self, limit: int) -> None:
        """Limit the memory of this process to half a segment above `limit`, so that rounding the fraction has no
        effect."""
        total = torch.cuda.get_device_properties(0).total_memory
        fraction = (limit + MiB) / total
        self.limit = round(fraction * total)
        self.mark("set_limit", self.limit)
        torch.cuda.set_per_process_memory_fraction(fraction)

    def attempt(self, work: Callable[[], Any]) -> bool:
        """Return True if `work` ran without running out of memory. Only the error message is kept."""
        free_before = torch.cuda.mem_get_info()[0]
        text = None
        try:
            work()
        except torch.OutOfMemoryError as error:
            text = str(error)
        if text is None:
            return True
        free, total = torch.cuda.mem_get_info()
        self.errors.append(
            {
                "text": text,
                "free_before": free_before,
                "free": free,
                "total": total,
                "allocated": torch.cuda.memory_allocated(),
                "reserved": torch.cuda.memory_reserved(),
                "stats_of_failures": {
                    key: torch.cuda.memory_stats()[key] for key in ("num_ooms", "num_alloc_retries")
                },
            }
        )
        gc.collect()
        return False

    def result(self) -> dict[str, Any]:
        torch.cuda.synchronize()
        snapshot = torch.cuda.memory._snapshot()
        self.marks.append(["snapshot", 0, 0, 0])
        stats = torch.cuda.memory_stats()
        marks = iter(self.marks)
        rows = []
        for entry in snapshot["device_traces"][0]:
            if entry["action"] == "snapshot":
                rows.append(next(marks))
            else:
                address = entry.get("addr", entry.get("device_free", 0))
                rows.append([entry["action"], address, entry["size"], entry.get("stream", 0)])
        return {
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "device": torch.cuda.get_device_name(),
            "total": torch.cuda.get_device_properties(0).total_memory,
            "capacity": torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved(),
            "allocator_settings": plain(snapshot.get("allocator_settings", {})),
            "limit": self.limit,
            "peak_alloc": torch.cuda.max_memory_allocated(),
            "peak_reserved": torch.cuda.max_memory_reserved(),
            "stats": stats,
            "segments": [
                {
                    "address": segment["address"],
                    "total_size": segment["total_size"],
                    "allocated_size": segment["allocated_size"],
                    "stream": segment["stream"],
                    "segment_type": segment["segment_type"],
                    "is_expandable": segment.get("is_expandable", False),
                    "blocks": [
                        [block["address"], block["size"], block["requested_size"], block["state"]]
                        for block in segment["blocks"]
                    ],
                }
                for segment in snapshot["segments"]
            ],
            "errors": self.errors,
            "rows": rows,
        }


def plain(value: Any) -> Any:
    """Return `value` with types that JSON supports."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


# ---------------------------------------------------------------- workloads


class SmallTransformer(nn.Module):
    def __init__(self, width: int = 512, layers: int = 2, vocabulary: int = 8000) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embedding(tokens)))


class SmallConvNet(nn.Module):
    def __init__(self, width: int = 48) -> None:
        super().__init__()
        stages: list[nn.Module] = []
        channels = 3
        for depth in range(4):
            wide = width << depth
            stages += [nn.Conv2d(channels, wide, 3, 2, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU()]
            stages += [nn.Conv2d(wide, wide, 3, 1, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU()]
            channels = wide
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(channels, 100)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.stages(images).mean((2, 3)))


def transformer_step() -> Callable[[int], None]:
    model = SmallTransformer().cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def step(batch: int) -> None:
        tokens = torch.randint(0, 8000, (batch, 128 + 8 * (batch % 5)), device="cuda")
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(tokens)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()

    return step


def conv_step() -> Callable[[int], None]:
    model = SmallConvNet().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def step(batch: int) -> None:
        images = torch.randn(batch, 3, 160, 160, device="cuda")
        labels = torch.randint(0, 100, (batch,), device="cuda")
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def train(recorder: Recorder, make_step: Callable[[], Callable[[int], None]], batches: list[int]) -> None:
    """Train with varying batch sizes, and empty the cache halfway."""
    step = make_step()
    for number, batch in enumerate(batches):
        if number == len(batches) // 2:
            recorder.empty_cache()
        step(batch)


def train_within(
    recorder: Recorder, make_step: Callable[[], Callable[[int], None]], limit: int, batch: int
) -> None:
    """Train with a memory limit that the first batches exceed. After each failure, continue with a smaller batch."""
    recorder.set_limit(limit)
    step = make_step()
    steps = 0
    while steps < 5:
        if recorder.attempt(lambda size=batch: step(size)):
            steps += 1
            batch += 3
        else:
            batch = max(1, batch * 2 // 3)


def random_sizes(
    recorder: Recorder,
    *,
    seed: int,
    operations: int = 2500,
    budget: int = 2 * GiB,
    largest: int = 256 * MiB,
    streams: int = 0,
    limit: int | None = None,
    empty_every: int = 900,
) -> None:
    """Allocate and free tensors of random sizes in random order. Sizes are log-uniform, and many sizes are similar.

    With `streams`, some tensors are allocated on side streams and used on others through record_stream. If `limit` is
    below `budget`, allocations fail. After a failure, half of the live tensors are freed.
    """
    if limit is not None:
        recorder.set_limit(limit)
    dice = random.Random(seed)
    side = [torch.cuda.Stream() for _ in range(streams)]
    live: list[torch.Tensor] = []
    frequent_sizes = [int(math.exp(dice.uniform(0, math.log(largest)))) for _ in range(40)]
    for number in range(operations):
        if number % empty_every == empty_every - 1:
            recorder.empty_cache()
        allocated = sum(tensor.nbytes for tensor in live)
        if live and (allocated > budget or dice.random() < 0.44):
            for _ in range(dice.choice((1, 1, 1, 2, 8))):
                if live:
                    live.pop(dice.randrange(len(live)))
            continue
        size = (
            dice.choice(frequent_sizes)
            if dice.random() < 0.6
            else int(math.exp(dice.uniform(0, math.log(largest))))
        )
        stream = dice.choice([torch.cuda.current_stream(), *side])

        def make(size: int = size, stream: torch.cuda.Stream = stream) -> None:
            with torch.cuda.stream(stream):
                live.append(torch.empty(max(1, size), dtype=torch.uint8, device="cuda"))

        if not recorder.attempt(make):
            dice.shuffle(live)
            del live[len(live) // 2 :]
        elif side and live and dice.random() < 0.3:
            user = dice.choice(side)
            with torch.cuda.stream(user):
                live[-1].add_(1)
                torch.cuda._sleep(dice.choice((10_000, 1_000_000, 20_000_000)))
            live[-1].record_stream(user)
        if side and number % 300 == 299:
            torch.cuda.synchronize()


def overlapped_loader(recorder: Recorder) -> None:
    """Copy batches on a side stream and use them on the main stream with record_stream, as a prefetching loader does."""
    step = conv_step()
    step(8)
    copies = torch.cuda.Stream()
    scale = nn.Parameter(torch.ones((), device="cuda"))
    for number in range(24):
        with torch.cuda.stream(copies):
            images = torch.randn(8 + number % 5, 3, 160, 160).pin_memory().cuda(non_blocking=True)
            images = images * 2 - 1
        torch.cuda.current_stream().wait_stream(copies)
        images.record_stream(torch.cuda.current_stream())
        (images * scale).square().mean().backward()
        if number % 4 == 3:
            step(8 + number % 5)


def error_texts(recorder: Recorder, limit: int | None) -> None:
    """Record the messages of three failures: a request that is far too large, one that is slightly too large, and one
    on a full device."""
    if limit is not None:
        recorder.set_limit(limit)
    total = recorder.limit or torch.cuda.mem_get_info()[0]
    kept = [torch.empty(5_000_000, dtype=torch.uint8, device="cuda") for _ in range(7)]
    kept += [torch.empty(700_001, dtype=torch.uint8, device="cuda") for _ in range(3)]
    del kept[2:4]
    recorder.attempt(lambda: torch.empty(1 << 42, dtype=torch.uint8, device="cuda"))
    recorder.attempt(lambda: torch.empty(total - 10 * MiB, dtype=torch.uint8, device="cuda"))
    recorder.attempt(lambda: torch.empty(total // 2, 3, dtype=torch.uint8, device="cuda"))
    piece = max(total // 9, 40 * MiB)

    def fill() -> None:
        while True:
            kept.append(torch.empty(piece, dtype=torch.uint8, device="cuda"))

    recorder.attempt(fill)
    del kept[-3:]
    recorder.attempt(lambda: torch.empty(4 * piece + 12345, dtype=torch.uint8, device="cuda"))
    recorder.attempt(lambda: [torch.empty(1_500_000, dtype=torch.uint8, device="cuda") for _ in range(3)])


TRANSFORMER_BATCHES = [8, 13, 5, 16, 9, 12]
CONV_BATCHES = [16, 24, 9, 40, 33, 12, 48, 20, 27, 44]

CASES: dict[str, tuple[str, Callable[[Recorder], None]]] = {
    # name: (PYTORCH_CUDA_ALLOC_CONF, workload)
    "expandable_transformer": (
        "expandable_segments:True",
        lambda r: train(r, transformer_step, TRANSFORMER_BATCHES),
    ),
    "expandable_conv": ("expandable_segments:True", lambda r: train(r, conv_step, CONV_BATCHES)),
    "expandable_sizes": ("expandable_segments:True", lambda r: random_sizes(r, seed=1)),
    "default_sizes": ("", lambda r: random_sizes(r, seed=2)),
    "max_split_conv": ("max_split_size_mb:64", lambda r: train(r, conv_step, [*CONV_BATCHES, 90, 70, 110])),
    "max_split_sizes": ("max_split_size_mb:64", lambda r: random_sizes(r, seed=3)),
    "max_split_rounding_sizes": (
        "max_split_size_mb:64,max_non_split_rounding_mb:64",
        lambda r: random_sizes(r, seed=4),
    ),
    "max_split_cap_sizes": (
        "max_split_size_mb:64",
        lambda r: random_sizes(r, seed=5, limit=700 * MiB, budget=900 * MiB),
    ),
    "cap_transformer": ("", lambda r: train_within(r, transformer_step, 900 * MiB, 40)),
    "cap_conv": ("", lambda r: train_within(r, conv_step, 500 * MiB, 96)),
    "cap_sizes": ("", lambda r: random_sizes(r, seed=6, limit=700 * MiB, budget=900 * MiB)),
    "cap_expandable_transformer": (
        "expandable_segments:True",
        lambda r: train_within(r, transformer_step, 900 * MiB, 40),
    ),
    "cap_expandable_conv": ("expandable_segments:True", lambda r: train_within(r, conv_step, 500 * MiB, 96)),
    "cap_expandable_sizes": (
        "expandable_segments:True",
        lambda r: random_sizes(r, seed=7, limit=700 * MiB, budget=900 * MiB),
    ),
    "cap_expandable_max_split_sizes": (
        "expandable_segments:True,max_split_size_mb:64",
        lambda r: random_sizes(r, seed=8, limit=700 * MiB, budget=900 * MiB),
    ),
    "roundup_transformer": (
        "roundup_power2_divisions:4",
        lambda r: train(r, transformer_step, TRANSFORMER_BATCHES[:4]),
    ),
    "roundup_sizes": ("roundup_power2_divisions:4", lambda r: random_sizes(r, seed=9)),
    "roundup_list_sizes": (
        "roundup_power2_divisions:[16:8,64:4,256:1,512:2,>:8]",
        lambda r: random_sizes(r, seed=10, largest=2 * GiB, budget=12 * GiB),
    ),
    "collect_conv": ("garbage_collection_threshold:0.6", lambda r: train_within(r, conv_step, 700 * MiB, 20)),
    "collect_sizes": (
        "garbage_collection_threshold:0.6",
        lambda r: random_sizes(r, seed=11, limit=900 * MiB, budget=800 * MiB, empty_every=10_000),
    ),
    "collect_expandable_sizes": (
        "garbage_collection_threshold:0.6,expandable_segments:True",
        lambda r: random_sizes(r, seed=12, limit=900 * MiB, budget=800 * MiB, empty_every=10_000),
    ),
    "large_segment_sizes": ("large_segment_size_mb:64", lambda r: random_sizes(r, seed=13)),
    "large_segment_expandable_sizes": (
        "large_segment_size_mb:64,expandable_segments:True",
        lambda r: random_sizes(r, seed=14),
    ),
    "fraction_sizes": (
        "per_process_memory_fraction:0.005",
        lambda r: random_sizes(r, seed=15, budget=500 * MiB, empty_every=10_000),
    ),
    "streams_loader": ("", overlapped_loader),
    "streams_sizes": ("", lambda r: random_sizes(r, seed=16, streams=3)),
    "streams_cap_sizes": (
        "",
        lambda r: random_sizes(r, seed=17, streams=3, limit=700 * MiB, budget=900 * MiB),
    ),
    "streams_expandable_sizes": (
        "expandable_segments:True",
        lambda r: random_sizes(r, seed=18, streams=3, limit=700 * MiB, budget=900 * MiB),
    ),
    "error_default": ("", lambda r: error_texts(r, None)),
    "error_fraction": ("", lambda r: error_texts(r, 3 * GiB)),
    "error_expandable": ("expandable_segments:True", lambda r: error_texts(r, None)),
    "error_expandable_fraction": ("expandable_segments:True", lambda r: error_texts(r, 3 * GiB)),
}


# ---------------------------------------------------------------- one process per case


def record(name: str, folder: Path) -> str:
    """Record a case in its own process, write the file, and return a summary line."""
    conf, work = CASES[name]
    torch.manual_seed(0)
    recorder = Recorder()
    failure = None
    try:
        work(recorder)
    except Exception:
        failure = traceback.format_exc(limit=-3)
    result = {"case": name, "conf": conf, "failure": failure, **recorder.result()}
    device = re.sub(r"\W+", "_", result["device"].lower().replace("nvidia", "").strip())
    path = folder / f"{device}_{name}.json.gz"
    path.write_bytes(gzip.compress(json.dumps(result, separators=(",", ":")).encode(), 9, mtime=0))
    rows = len(result["rows"])
    note = f"  ({rows} rows is above {MAX_ROWS})" if rows > MAX_ROWS else ""
    note += f"  FAILED: {failure.strip().splitlines()[-1]}" if failure else ""
    return (
        f"{name:32} {rows:6} rows  {len(recorder.errors):3} errors  peak {result['peak_alloc'] / MiB:8.1f}"
        f" / {result['peak_reserved'] / MiB:8.1f} MiB  {path.stat().st_size / 1024:6.1f} KiB{note}"
    )


def start(name: str, folder: Path) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.endswith("ALLOC_CONF")}
    if CASES[name][0]:
        environment["PYTORCH_CUDA_ALLOC_CONF"] = CASES[name][0]
    done = subprocess.run(
        [sys.executable, __file__, str(folder), "--here", name],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode:
        return f"{name:32} FAILED: {(done.stderr.strip().splitlines() or ['no output'])[-1]}"
    return done.stdout.strip().splitlines()[-1]


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    if arguments[1:2] == ["--here"]:
        print(record(arguments[2], folder))
        return 0
    chosen = arguments[1:] or list(CASES)
    # Cases that fill the whole device, or whose messages contain the free memory, need the device to themselves.
    alone = [name for name in chosen if name.startswith("error_")]
    together = [name for name in chosen if name not in alone]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        for line in pool.map(lambda name: start(name, folder), together):
            print(line, flush=True)
    for name in alone:
        print(start(name, folder), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
