"""Measures training steps and single operations on a real GPU. Needs torch, torchvision and transformers, not Legroom.

    python -m bench.accuracy.measure_cases peaks OUT --cases study [--jobs 6]     peaks of each case, one fresh process each
    python -m bench.accuracy.measure_cases inside OUT --cases study [--jobs 4]    what each operation of a case allocates inside
    python -m bench.accuracy.measure_cases probes OUT [--jobs 4]                  the same for convolutions, attention and other operations
    python -m bench.accuracy.measure_cases scratch OUT [--jobs 4]                 the same for a wide list of ordinary operations
    python -m bench.accuracy.measure_cases histories OUT --cases a,b [--jobs 4]   all that the allocator did over three steps, unwatched
    python -m bench.accuracy.measure_cases caps OUT --cases a,b [--caps 1,1.5]    whether cases run under a cap of so many GiB
    python -m bench.accuracy.measure_cases context OUT                            what CUDA, its libraries and NCCL hold outside torch

`peaks` writes OUT/peaks-<cases>.json. `inside`, `probes` and `scratch` write OUT/*.jsonl.gz: one line per case or probe, with the
bytes asked for (+) and given back (-) in order, and which operation, with which arguments, did so. A dispatch mode
marks the borders of operations there, so gradients that meet are added out of place; `histories` runs without one and
writes OUT/histories.jsonl.gz: rows of [action, bytes, address].
"""

import argparse
import concurrent.futures
import dataclasses
import gc
import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from bench.accuracy.cases.steps import CASES, Case, build, join_alone
from bench.rules.operations.probes import PROBES
from bench.rules.operations.scratch_probes import SCRATCH_PROBES

STEPS = 3


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what",
        choices=[
            "peaks",
            "inside",
            "probes",
            "scratch",
            "histories",
            "caps",
            "context",
            "one",
            "history",
            "capped",
        ],
    )
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--cases", default="study", help="study, held-back, reference, or keys separated by commas"
    )
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--part", default="", help="i/n: only every n-th probe or case, from i")
    parser.add_argument("--only", default="", help="only probes with this word in their names")
    parser.add_argument("--caps", default="", help="GiB for the allocator, separated by commas")
    options = parser.parse_args(argv)
    if options.what == "one":
        print(json.dumps(peak_of(case_of(options.cases))))
        return 0
    if options.what == "history":
        print(json.dumps(history_of(case_of(options.cases))))
        return 0
    if options.what == "capped":
        print(json.dumps(run_capped(case_of(options.cases), float(options.caps))))
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    if options.what == "peaks":
        return measure_peaks(options.out, options.cases, options.jobs)
    if options.what == "histories":
        return record_histories(options.out, options.cases, options.jobs)
    if options.what == "context":
        return measure_context(options.out)
    if options.what == "caps":
        return try_caps(options.out, options.cases, options.caps, options.jobs)
    if options.part:
        return look_inside(options.out, options.what, options.cases, options.part, options.only)
    return in_parts(options.out, options.what, options.cases, options.jobs, options.only)


def selected(names: str) -> list[Case]:
    """The cases of a named half, or those whose keys are listed."""
    if names in CASES:
        return CASES[names]
    return [case_of(name) for name in names.split(",")]


def case_of(key: str) -> Case:
    return next(case for half in CASES.values() for case in half if case.key == key)


# Peaks: one fresh process per case, because the allocator and cuBLAS keep what an earlier case made them take.


def in_fresh_process(what: str, case: Case, *words: str) -> dict[str, Any]:
    """One case in a process of its own: what it printed last, or why it failed."""
    command = [sys.executable, "-m", "bench.accuracy.measure_cases", what, "-", "--cases", case.key, *words]
    process = subprocess.run(
        command, capture_output=True, text=True, timeout=280, check=False, env=environment()
    )
    if process.returncode:
        return {"key": case.key, "error": (process.stderr.strip() or "?").splitlines()[-1][:300]}
    result: dict[str, Any] = json.loads(process.stdout.strip().splitlines()[-1])
    return result


def measure_peaks(out: Path, names: str, jobs: int) -> int:
    rows = []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for row in pool.map(lambda case: in_fresh_process("one", case), selected(names)):
            rows.append(row)
            found = (
                row.get("error") or f"{row['peak_alloc'] / 2**20:.1f} {row['peak_reserved'] / 2**20:.1f} MiB"
            )
            print(row["key"], found, flush=True)
            name = names if names in CASES else "some"
            (out / f"peaks-{name}.json").write_text(json.dumps(rows))
    return 0


def peak_of(case: Case) -> dict[str, Any]:
    model, _, step = build(case, "cuda")
    torch.cuda.synchronize()
    base = torch.cuda.memory_allocated()
    rows = []
    skipped = []
    for number in range(STEPS):
        torch.cuda.reset_peak_memory_stats()
        scale = scale_of(step)
        step()
        torch.cuda.synchronize()
        if scale_of(step) < scale:
            skipped.append(number)
        rows.append(
            {
                "peak_alloc": torch.cuda.max_memory_allocated(),
                "peak_reserved": torch.cuda.max_memory_reserved(),
                "end_alloc": torch.cuda.memory_allocated(),
                "end_reserved": torch.cuda.memory_reserved(),
            }
        )
    stats = torch.cuda.memory_stats()
    return {
        "case": dataclasses.asdict(case),
        "key": case.key,
        "params": sum(p.numel() for p in model.parameters()),
        "base_alloc": base,
        "steps": rows,
        "peak_alloc": max(row["peak_alloc"] for row in rows),
        "peak_reserved": max(row["peak_reserved"] for row in rows),
        "requested_peak": stats["requested_bytes.all.peak"],
        "segments": stats["segment.all.current"],
        "skipped_steps": skipped,
        **versions(),
    }


def scale_of(step: Any) -> float:
    """The GradScaler's factor; it shrinks when a step is skipped because gradients overflowed."""
    return 1.0 if step.scaler is None else float(step.scaler.get_scale())


def versions() -> dict[str, Any]:
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "gpu": torch.cuda.get_device_name(),
    }
    for name in ("torchvision", "transformers"):
        if name in sys.modules:
            found[name] = sys.modules[name].__version__
    return found


def record_histories(out: Path, names: str, jobs: int) -> int:
    with (
        gzip.open(out / "histories.jsonl.gz", "wt") as file,
        concurrent.futures.ThreadPoolExecutor(jobs) as pool,
    ):
        for row in pool.map(lambda case: in_fresh_process("history", case), selected(names)):
            file.write(json.dumps(row) + "\n")
            print(row["key"], row.get("error") or f"{len(row['events'])} events", flush=True)
    return 0


def history_of(case: Case) -> dict[str, Any]:
    """Every request of a case over three steps, and where each step begins in the list."""
    torch.cuda.memory._record_memory_history(max_entries=5_000_000, context=None)
    _, _, step = build(case, "cuda")
    torch.cuda.synchronize()
    begins = [len(told())]
    for _ in range(STEPS):
        step()
        torch.cuda.synchronize()
        begins.append(len(told()))
    return {
        "key": case.key,
        "begins": begins,
        "events": told(),
        "peak_alloc": torch.cuda.max_memory_allocated(),
        "peak_reserved": torch.cuda.max_memory_reserved(),
        **versions(),
    }


def told() -> list[list[Any]]:
    """What the allocator did so far: [action, bytes, address]."""
    return [
        [event["action"], event["size"], event["addr"]]
        for event in torch.cuda.memory._snapshot()["device_traces"][0]
        if event["action"] != "free_requested"
    ]


def try_caps(out: Path, names: str, caps: str, jobs: int) -> int:
    """Whether each case gets through three steps under each cap."""
    pairs = [(case, cap) for case in selected(names) for cap in caps.split(",")]
    rows = []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for row in pool.map(lambda pair: in_fresh_process("capped", pair[0], "--caps", pair[1]), pairs):
            rows.append(row)
            print(json.dumps(row), flush=True)
    (out / "caps.json").write_text(json.dumps(rows))
    return 0


def run_capped(case: Case, gigabytes: float) -> dict[str, Any]:
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(gigabytes * 2**30 / total)
    _, _, step = build(case, "cuda")
    done = 0
    failed = ""
    try:
        for _ in range(STEPS):
            step()
            torch.cuda.synchronize()
            done += 1
    except torch.OutOfMemoryError as error:
        failed = str(error)[:200]
    return {
        "key": case.key,
        "cap_gib": gigabytes,
        "steps": done,
        "failed": failed,
        "peak_alloc": torch.cuda.max_memory_allocated(),
        "peak_reserved": torch.cuda.max_memory_reserved(),
    }


def measure_context(out: Path) -> int:
    """What the device holds beyond torch's allocator, stage by stage. Nothing else may run on it meanwhile."""
    rows = []

    def note(stage: str) -> None:
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        rows.append([stage, total - free - torch.cuda.memory_reserved(), torch.cuda.memory_reserved()])
        print(*rows[-1], flush=True)

    torch.cuda.init()
    torch.ones(1, device="cuda")
    note("context")
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64 * 62 * 62, 64)
    ).cuda()
    x = torch.randn(32, 3, 64, 64, device="cuda")
    model(x).sum().backward()
    note("cuBLAS and cuDNN")
    join_alone()
    note("process group")
    torch.distributed.all_reduce(torch.ones(16 << 20, device="cuda"))
    note("first all-reduce of 64 MiB")
    parallel = torch.nn.parallel.DistributedDataParallel(model, device_ids=[0])
    note("DistributedDataParallel")
    parallel(x).sum().backward()
    note("its step")
    (out / "context.json").write_text(json.dumps({"stages": rows, **versions()}))
    return 0


def environment() -> dict[str, str]:
    return dict(os.environ, HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="2")


# Inside operations: the allocator's own history, cut at the borders of operations. The borders are the counts of
# allocations and frees so far, which the allocator keeps anyway: nothing is allocated to mark them.


def in_parts(out: Path, what: str, names: str, jobs: int, only: str) -> int:
    workers = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "bench.accuracy.measure_cases",
                what,
                str(out),
                "--cases",
                names,
                "--only",
                only,
                "--part",
                f"{i}/{jobs}",
            ],
            env=environment(),
        )
        for i in range(jobs)
    ]
    return max(worker.wait() for worker in workers)


def look_inside(out: Path, what: str, names: str, part: str, only: str) -> int:
    index, count = map(int, part.split("/"))
    stem = f"{what}-{names if names in CASES else 'some'}" if what == "inside" else what
    torch.cuda.memory._record_memory_history(max_entries=5_000_000, context=None)
    with gzip.open(out / f"{stem}-{index}.jsonl.gz", "wt") as file:
        if what != "inside":
            listed = PROBES() if what == "probes" else SCRATCH_PROBES()
            for name, probe in [one for one in listed if only in one[0]][index::count]:
                write(file, name, lambda probe=probe: probe())
        else:
            for case in selected(names)[index::count]:
                write(file, case.key, lambda case=case: two_steps(case))
    return 0


def two_steps(case: Case) -> None:
    _, _, step = build(case, "cuda")
    step()
    step()


def write(file: Any, name: str, action: Any) -> None:
    began = time.perf_counter()
    torch.cuda.memory._record_memory_history(enabled=None)
    torch.cuda.memory._record_memory_history(max_entries=5_000_000, context=None)
    row: dict[str, Any] = {"name": name}
    earlier = len(history())
    borders = Borders()
    try:
        with borders:
            action()
        torch.cuda.synchronize()
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {str(error)[:200]}"
    row |= borders.cut(history()[earlier:])
    row["seconds"] = round(time.perf_counter() - began, 3)
    file.write(json.dumps(row) + "\n")
    file.flush()
    del borders
    if torch.cuda.memory_reserved() > 12 << 30:  # several processes share the device
        gc.collect()
        torch.cuda.empty_cache()


def history() -> list[int]:
    """Bytes asked for (+) and given back (-) so far, in order."""
    return [
        event["size"] if event["action"] == "alloc" else -event["size"]
        for event in torch.cuda.memory._snapshot()["device_traces"][0]
        if event["action"] in ("alloc", "free_completed")
    ]


def describe(value: Any) -> Any:
    """An argument as text: tensors by dtype, shape and (where not contiguous) strides; the rest as it is."""
    if isinstance(value, torch.Tensor):
        text = f"{str(value.dtype)[6:]}{list(value.shape)}"
        if not value.is_contiguous():
            text += f"s{list(value.stride())}"
        return text if value.is_cuda else f"host {text}"
    if isinstance(value, list | tuple):
        short = [describe(item) for item in value[:6]]
        return [*short, f"+{len(value) - 6}"] if len(value) > 6 else short
    return value if isinstance(value, int | float | bool | str | None) else str(value)


class Borders(TorchDispatchMode):
    """Notes where in the allocator's history each operation begins and ends."""

    def __init__(self) -> None:
        super().__init__()
        self.origin = self.position()
        self.marks: list[tuple[str, int, int]] = []

    @staticmethod
    def position() -> int:
        counts = torch.cuda.memory_stats_as_nested_dict().get("allocation", {}).get("all", {})
        return int(counts.get("allocated", 0) + counts.get("freed", 0))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        begin = self.position()
        out = func(*args, **kwargs)
        end = self.position()
        if end != begin:
            given = {"args": describe(list(args)), "out": describe(list(tree_iter(out)))}
            if kwargs:
                given["kwargs"] = {name: describe(value) for name, value in kwargs.items()}
            self.marks.append((json.dumps([str(func), given]), begin - self.origin, end - self.origin))
        return out

    def cut(self, events: list[int]) -> dict[str, Any]:
        """The distinct operations; the order in which they ran; the events inside and between them.

        `order` holds [operation, events before it since the last one, events inside it]."""
        names: dict[str, int] = {}
        order = []
        last = 0
        for text, begin, end in self.marks:
            order.append([names.setdefault(text, len(names)), begin - last, end - begin])
            last = end
        return {"ops": [json.loads(text) for text in names], "order": order, "events": events}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
