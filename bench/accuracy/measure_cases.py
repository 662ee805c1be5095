"""Measures training cases on a real GPU. Needs a GPU, torch, torchvision and transformers, not Legroom.

    python -m bench.accuracy.measure_cases peaks OUT --cases unseen-broad [--jobs 6]      peak memory of each case
    python -m bench.accuracy.measure_cases histories OUT --cases KEY,KEY [--jobs 4]       every allocator event of three steps
    python -m bench.accuracy.measure_cases caps OUT --cases KEY,KEY --caps 1,1.5          whether cases run with so many GiB
    python -m bench.accuracy.measure_cases context OUT                                    memory of CUDA, its libraries and NCCL outside torch

`peaks` writes OUT/peaks-<cases>.json. `histories` writes OUT/histories.jsonl.gz with rows of [action, bytes, address].
"""

import concurrent.futures
import dataclasses
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from bench.accuracy.cases.build_step import build, join_group_of_one
from bench.accuracy.cases.case import Case
from bench.accuracy.cases.sets import CASES
from bench.lib.command_line import command_line

STEPS = 3


def main(argv: list[str]) -> int:
    parser = command_line(__doc__)
    parser.add_argument(
        "what",
        choices=["peaks", "histories", "caps", "context", "one", "history", "capped"],
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--cases", default="reference", help="a set, or keys separated by commas")
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--caps", default="", help="memory limits in GiB, separated by commas")
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
    return try_caps(options.out, options.cases, options.caps, options.jobs)


def selected(names: str) -> list[Case]:
    """Return the cases of a named set, or the cases with the listed keys."""
    if names in CASES:
        return CASES[names]
    return [case_of(name) for name in names.split(",")]


def case_of(key: str) -> Case:
    return next(case for cases in CASES.values() for case in cases if case.key == key)


def in_fresh_process(what: str, case: Case, *words: str) -> dict[str, Any]:
    """Run one case in its own process, because the allocator and cuBLAS keep memory from earlier cases.

    Return the JSON that the process printed last, or the error.
    """
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
    """Return the GradScaler's scale. The scale decreases when a step is skipped because gradients overflowed."""
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
    """Return every allocator event of three steps, and the index of the first event of each step."""
    torch.cuda.memory._record_memory_history(max_entries=5_000_000, context=None)
    _, _, step = build(case, "cuda")
    torch.cuda.synchronize()
    begins = [len(events())]
    for _ in range(STEPS):
        step()
        torch.cuda.synchronize()
        begins.append(len(events()))
    return {
        "key": case.key,
        "begins": begins,
        "events": events(),
        "peak_alloc": torch.cuda.max_memory_allocated(),
        "peak_reserved": torch.cuda.max_memory_reserved(),
        **versions(),
    }


def events() -> list[list[Any]]:
    """Return the allocator's events so far, each as [action, bytes, address]."""
    return [
        [event["action"], event["size"], event["addr"]]
        for event in torch.cuda.memory._snapshot()["device_traces"][0]
        if event["action"] != "free_requested"
    ]


def try_caps(out: Path, names: str, caps: str, jobs: int) -> int:
    """Run three steps of each case with each memory limit."""
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
    """Measure device memory outside torch's allocator, stage by stage. No other program may use the device during the
    measurement."""
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
    join_group_of_one()
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
