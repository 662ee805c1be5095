"""The largest batch under a cap: found without a GPU, against the true one measured on an H200.

    python -m bench.largest_batch

True sizes: bisection on the GPU, three full steps each, the cap set by the per-process fraction. Cases whose libraries
are not installed here (torchvision, transformers) are named and left out.
"""

import time
import warnings

from bench.table import print_table
from bench.workloads import Case, build
from legroom.memory.allocator_settings import AllocatorSettings
from legroom.observe.gpus import find_gpu
from legroom.predict import fit
from legroom.predict.largest_batch import largest_batch
from legroom.predict.trace import Trace, trace_steps
from legroom.units import GiB

MEASURED = (
    ("resnet50", "sgdm", "fp32", 8, 94),
    ("gpt2", "adamw", "amp_bf16", 16, 20),
    ("bert_base", "adamw", "fp32", 8, 85),
    ("unet", "adam", "fp32", 8, 38),
    ("lstm", "adam", "amp_fp16", 4, 371),
)
"""Model, optimizer, precision, cap in GiB, true largest batch."""


def main() -> None:
    warnings.simplefilter("ignore")
    fit.default_settings = lambda: AllocatorSettings.from_environment(
        {}, "2.11.0"
    )  # the release that was measured
    gpu = find_gpu("h200")
    rows: list[list[str]] = []
    for model, optimizer, precision, cap, true in MEASURED:

        def trace_at(
            size: int, model: str = model, optimizer: str = optimizer, precision: str = precision
        ) -> Trace:
            case = Case(model=model, optimizer=optimizer, precision=precision, batch=size)
            return trace_steps(lambda: build(case, "cuda")[2], gpu)

        for safe in (False, True):
            began = time.perf_counter()
            try:
                search = largest_batch(trace_at, cap * GiB, start=16, safe=safe)
            except ImportError as error:
                print(f"left out, {model}: {error}")
                break
            found = search.largest or 0
            rows.append(
                [
                    f"{model}/{optimizer}/{precision}", f"{cap} GiB", "safe" if safe else "", str(true), str(found),
                    f"{found / true:.3f}", str(len(search.tried)), f"{time.perf_counter() - began:.0f}",
                ]
            )  # fmt: skip
    print_table(
        "Largest batch, from a start of 16",
        ["case", "cap", "", "true", "found", "found / true", "traces", "s"],
        rows,
    )


if __name__ == "__main__":
    main()
