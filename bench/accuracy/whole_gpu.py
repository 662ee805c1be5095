"""Runs training steps at the predicted largest batch on a GPU without a memory limit. The predictions do not need a
GPU.

    python -m bench.accuracy.whole_gpu predict PREDICTED.json [--total 12]
    python -m bench.accuracy.whole_gpu run PREDICTED.json

`predict` needs Legroom. `run` needs a GPU and torch, not Legroom. A limit of PyTorch
(`set_per_process_memory_fraction`) does not include the memory that CUDA libraries need outside PyTorch. Instead,
another process occupies all but `--total` GiB of the GPU. Each size runs in a process that has not used the GPU
before.
"""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from bench.accuracy.cases.build_step import build
from bench.accuracy.cases.case import Case
from bench.accuracy.measure_largest_batch import STEPS, run_steps
from bench.lib.command_line import command_line
from bench.lib.forks import in_fork
from bench.lib.table import print_table

GiB = 1 << 30

CASES = (
    Case(model="nano_gpt", optimizer="adamw", precision="amp_bf16", batch=8),
    Case(model="nano_gpt", optimizer="adamw", precision="fp32", batch=8),
    Case(model="transformer_encoder", optimizer="adam", precision="fp32", batch=8),
    Case(model="transformer_encoder", optimizer="sgd", precision="amp_bf16", batch=8),
    Case(model="mlp_mixer", optimizer="adam", precision="fp32", batch=8),
    Case(model="llama_gqa", optimizer="adamw", precision="bf16", batch=4),
    Case(model="diffusion_unet", optimizer="adamw", precision="amp_bf16", batch=8),
    Case(model="unet", optimizer="adam", precision="fp32", batch=8),
    Case(model="lstm", optimizer="adam", precision="amp_fp16", batch=64),
    Case(model="gpt2", optimizer="adamw", precision="amp_bf16", batch=8),
)

HOLDER = """
import sys, torch
torch.ones(1, device="cuda")
free = torch.cuda.mem_get_info()[0]
kept = torch.empty(free - int(sys.argv[1]), dtype=torch.uint8, device="cuda")
print(torch.cuda.mem_get_info()[0], flush=True)
sys.stdin.read()
"""


def predict(file: Path, total: int) -> None:
    from legroom.gpus.catalog import find_gpu
    from legroom.predict.fit import available_bytes
    from legroom.predict.largest_batch import largest_batch
    from legroom.predict.tracing.trace import Trace
    from legroom.predict.tracing.virtual_trace import trace_steps

    gpu = dataclasses.replace(find_gpu("h200"), total=total)
    found: list[dict[str, Any]] = []
    for case in CASES:

        def trace_at(size: int, case: Case = case) -> Trace:
            return trace_steps(
                lambda: build(dataclasses.replace(case, batch=size), "cuda")[2], gpu, steps=STEPS
            )

        try:
            search = largest_batch(trace_at, available_bytes(trace_at(case.batch)), start=case.batch)
        except ImportError as error:
            print(f"skipped, {case.key}: {error}")
            continue
        print(case.key, search.largest, flush=True)
        found.append({"case": dataclasses.asdict(case), "predicted": search.largest, "total": total})
        file.write_text(json.dumps(found, indent=1))


def outcome(case: Case, size: int) -> str:
    """Return `fits`, or the first line of the error."""
    try:
        run_steps(dataclasses.replace(case, batch=size), "cuda")
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:70]}"
    return "fits"


def run(file: Path) -> None:
    rows = json.loads(file.read_text())
    torch.set_num_threads(1)
    shown = []
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(rows[0]["total"])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        print(f"{int(holder.stdout.readline()) / GiB:.3f} GiB are free", flush=True)
        for row in rows:
            case, predicted = Case(**row["case"]), row["predicted"]
            sizes = [
                predicted,
                *(predicted + max(1, round(predicted * share)) for share in (0.01, 0.03, 0.08)),
            ]
            tried = {
                size: in_fork(lambda case=case, size=size: outcome(case, size))
                for size in dict.fromkeys(sizes)
            }
            shown.append([case.key, str(predicted), *(str(tried[size])[:40] for size in sizes)])
            print(*shown[-1], sep="\n    ", flush=True)
        holder.kill()
    print_table("The predicted largest batch", ["case", "predicted", "at it", "+1%", "+3%", "+8%"], shown)


def main(argv: list[str]) -> int:
    parser = command_line(__doc__)
    parser.add_argument("action", choices=["predict", "run"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--total", type=float, default=12, help="GiB")
    options = parser.parse_args(argv)
    if options.action == "predict":
        predict(options.file, int(options.total * GiB))
    else:
        run(options.file)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
