"""Compares the answers of cuDNN about convolutions with the measured table, and records many more answers.

    python -m bench.rules.convolution.ask_cudnn [--count 2000] [--handle] [--out FOLDER] [--survey SECONDS] [--jobs 15]

Needs cuDNN (`LEGROOM_CUDNN` names the library if torch has none) but no GPU, because cuDNN answers for a described
GPU. `--handle` also queries cuDNN through a handle on a real GPU, as torch does, and with the description of that
GPU. The answers that differ from the table are written to FOLDER.

`--survey` then records answers about random convolutions for the given number of seconds, in several processes. It
queries the handle or the described GPU, and writes FOLDER/answers-<part>.jsonl.gz. The rows are those of `survey`,
followed by the engine (null if cuDNN does not report it) and the knobs of the three operations.
"""

import argparse
import collections
import ctypes
import gzip
import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.lib.command_line import command_line
from bench.lib.table import print_table
from bench.rules.convolution.everyday_layers import draw_everyday
from bench.rules.convolution.practice_layers import draw_practice
from bench.rules.recordings import write_versions
from legroom.gpus.catalog import find_gpu
from legroom.observe.cuda_rules.convolution.cudnn_library import (
    Attribute,
    AttributeType,
    AttributeValue,
    ConvOperation,
    DescriptorSet,
    DescriptorType,
    RejectedError,
    SkippedKernel,
    descriptor_set,
    enum_value,
    find_library,
)
from legroom.observe.cuda_rules.convolution.cudnn_query import OPERATIONS, Cudnn, KernelChoice, describe_gpu
from legroom.observe.cuda_rules.convolution.gpu_only_kernels import ALGORITHMS, first_gpu_only, kernel_problem
from legroom.observe.cuda_rules.convolution.recorded_table import (
    UNIT,
    ConvLayer,
    ConvQuery,
    convolution_of,
    output_sizes,
    recorded_workspaces,
    table,
)
from legroom.observe.cuda_rules.convolution.workspace_rules import Convolution, tensor_bytes

H200 = find_gpu("h200")
Answer = tuple[int, int, dict[int, int]]
"""The workspace bytes, the engine and the knobs."""


class WithHandle(Cudnn):
    """Queries cuDNN through a handle on a real GPU, as torch does."""

    def __init__(self, functions: Any) -> None:
        super().__init__(functions, H200)
        import torch

        torch.zeros(1, device="cuda")  # creates a context
        self._handle = ctypes.c_void_p()
        status = functions.cudnnCreate(ctypes.byref(self._handle))
        if status:
            raise RuntimeError(f"cudnnCreate: status {status}")

    def select_kernel(
        self, question: ConvQuery, operation: ConvOperation
    ) -> tuple[KernelChoice | None, list[SkippedKernel]]:
        """Return the first choice. With a GPU, no kernel is skipped."""
        return self.select(question, operation), []

    def sizes_of(
        self,
        taken: KernelChoice,
        passed_over: list[SkippedKernel],
        question: ConvQuery,
        operation: ConvOperation,
        c: Convolution,
    ) -> tuple[int, ...]:
        """Return only the workspace size, because a real GPU includes the partial sums of its kernels."""
        return (taken.workspace,)

    def _device_attributes(
        self, descriptors: DescriptorSet
    ) -> tuple[Mapping[int, AttributeValue], Mapping[int, AttributeValue], Mapping[int, AttributeValue]]:
        handle = (AttributeType.HANDLE, (ctypes.c_void_p * 1)(self._handle.value))
        return {Attribute.GRAPH_HANDLE: handle}, {}, {Attribute.PLAN_HANDLE: handle}


def main(argv: list[str]) -> int:
    parser = command_line(__doc__)
    parser.add_argument("--count", type=int, default=2000, help="number of measured layers to ask about")
    parser.add_argument(
        "--seed", type=int, default=1, help="seed of the draws; use a new one for each survey"
    )
    parser.add_argument("--handle", action="store_true", help="also ask through a handle on the GPU")
    parser.add_argument("--out", type=Path, default=Path("asked"))
    parser.add_argument("--survey", type=float, default=0, metavar="SECONDS")
    parser.add_argument("--jobs", type=int, default=15)
    parser.add_argument("--part", default="", help="internal: part of the survey")
    options = parser.parse_args(argv)
    functions = find_library()
    if functions is None:
        print(
            "No usable cuDNN library. Install nvidia-cudnn-cu13, or set LEGROOM_CUDNN to the path of libcudnn.so.9."
        )
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    if options.part:
        cudnn = WithHandle(functions) if options.handle else Cudnn(functions, H200)
        return survey(cudnn, options.part, options.seed, options.survey, options.out)
    print(f"cuDNN {functions.cudnnGetVersion()}", flush=True)
    ways: dict[str, Cudnn] = {"described": Cudnn(functions, H200)}
    if options.handle:
        ways["handle"] = WithHandle(functions)
        own = description_of_device(functions)
        print("the GPU describes itself as", own, flush=True)
        ways["its own description"] = Cudnn(functions, H200, own)
    agreed = compare(ways, functions, measured(options.count, options.seed), options.out)
    if options.survey and agreed >= ENOUGH:
        return in_parts(options)
    return 0


ENOUGH = 0.8
"""The fraction of answers that must agree with the table before a survey starts."""


def description_of_device(functions: Any) -> str:
    """Return the properties of the first GPU in cuDNN's format."""
    try:
        with descriptor_set(functions) as descriptors:
            device = descriptors.create(
                DescriptorType.DEVICE, {Attribute.DEVICE_ID: enum_value(AttributeType.INT32, 0)}
            )
            return descriptors.string(device, Attribute.DEVICE_JSON)
    except RejectedError as error:
        print("the GPU does not describe itself:", error)
        return describe_gpu(H200)


Known = tuple[ConvQuery, tuple[int, ...]]


def measured(count: int, seed: int) -> list[Known]:
    """Return random layers of the table, without contiguous depthwise layers, which do not use cuDNN."""
    rows = [
        (layer, row)
        for layer, rows in table()
        for row in rows
        if layer.padding is not None and not (layer.groups == layer.inputs > 1 and not layer.channels_last)
    ]
    found: list[Known] = []
    for layer, row in random.Random(seed).sample(rows, min(count, len(rows))):
        sizes = tuple(output_sizes(layer, layer.padding or ()))
        found.append(
            (ConvQuery(layer, row[0], sizes), tuple(recorded_workspaces(row, convolution_of(layer, row[0]))))
        )
    return found


def compare(ways: dict[str, Cudnn], functions: Any, measured_layers: list[Known], out: Path) -> float:
    """Print how often each way to query cuDNN agrees with the table, within 1% of the bytes that the convolution reads
    and writes. Return the best fraction."""
    right: collections.Counter[tuple[str, str, str]] = collections.Counter()
    seen: collections.Counter[tuple[str, str, str]] = collections.Counter()
    refused: collections.Counter[str] = collections.Counter()
    others: list[Any] = []
    spent = dict.fromkeys(ways, 0.0)
    for question, sizes in measured_layers:
        c = convolution_of(question.layer, question.batch)
        for operation, size in zip(OPERATIONS, sizes, strict=True):
            agreed = True
            for way, cudnn in ways.items():
                begun = time.perf_counter()
                answer = cudnn.workspace(question, operation, c)
                spent[way] += time.perf_counter() - begun
                key = (way, operation.name.lower(), kind_of(question.layer))
                seen[key] += 1
                same = answer is not None and abs(answer - size) <= max(2 * UNIT, tensor_bytes(c) // 100)
                right[key] += same
                agreed = agreed and same
            if not agreed and len(others) < _LISTED:
                answers = {
                    way: answered(cudnn, functions, question, operation, refused, most=8)
                    for way, cudnn in ways.items()
                }
                others.append([question, operation.name, size, answers])
    rows = [[*key, str(count), f"{right[key] / count:.1%}"] for key, count in sorted(seen.items())]
    print_table(
        "cuDNN's answers and the measured table", ["asked", "operation", "kind", "count", "the same"], rows
    )
    shares = {
        way: sum(right[key] for key in right if key[0] == way) / (3 * len(measured_layers)) for way in ways
    }
    for way, share in shares.items():
        print(
            f"{way}: {share:.2%} the same, {spent[way] / len(measured_layers) * 1000:.1f} ms per layer",
            flush=True,
        )
    for words, count in refused.most_common(12):
        print(f"refused {count} times: {words}")
    with gzip.open(out / "disagreements.json.gz", "wt") as file:
        json.dump(others, file)
    return max(shares.values())


_LISTED = 300
"""The number of disagreements that are saved."""


def answered(
    cudnn: Cudnn,
    functions: Any,
    question: ConvQuery,
    operation: ConvOperation,
    refused: collections.Counter[str],
    most: int = 1,
) -> list[Answer]:
    """Return the first few choices with their knobs. Choices that cuDNN rejects are omitted."""
    found: list[Answer] = []
    try:
        with descriptor_set(functions) as descriptors:
            for one in itertools.islice(cudnn.candidates(descriptors, question, operation), most):
                found.append((one.workspace, one.engine, one.knobs))
    except RejectedError as error:
        refused[str(error)] += 1
    return found


def kind_of(layer: ConvLayer) -> str:
    if layer.groups > 1:
        return "groups"
    if max(layer.kernel) == 1:
        return "one pixel"
    return "transposed" if layer.transposed else "other"


def in_parts(options: argparse.Namespace) -> int:
    write_versions(options.out)
    workers = [
        subprocess.Popen(
            [
                sys.executable, "-m", "bench.rules.convolution.ask_cudnn", "--survey", str(options.survey), "--out", str(options.out),
                "--part", f"{i}/{options.jobs}", "--seed", str(options.seed), *(["--handle"] if options.handle else []),
            ],
            env=dict(os.environ, OMP_NUM_THREADS="1"),
        )
        for i in range(options.jobs)
    ]  # fmt: skip
    return max(worker.wait() for worker in workers)


def survey(cudnn: Cudnn, part: str, seed: int, seconds: float, out: Path) -> int:
    index, count = map(int, part.split("/"))
    end = time.monotonic() + seconds
    written = 0
    with gzip.open(out / f"answers-{index}.jsonl.gz", "wt", compresslevel=4) as file:
        for row, question in requests(index, count, seed):
            if time.monotonic() > end:
                break
            c = convolution_of(question.layer, question.batch, row[-1])
            sizes, engines = zip(
                *(answer_of(cudnn, question, c, operation) for operation in OPERATIONS), strict=True
            )
            file.write(json.dumps([*row, *sizes, *engines]) + "\n")
            written += 1
    print(f"part {index}: {written} rows", flush=True)
    return 0


def answer_of(
    cudnn: Cudnn, question: ConvQuery, c: Convolution, operation: ConvOperation
) -> tuple[int, tuple[int | None, dict[int, int]]]:
    """Return the workspace bytes, the engine and the knobs. The engine is None if cuDNN does not report it or if the
    size is unknown. Kernels that need a GPU are included."""
    taken, passed_over = cudnn.select_kernel(question, operation)
    sizes = cudnn.sizes_of(taken, passed_over, question, operation, c) if taken else ()
    if not taken or not sizes:
        return 0, (None, {})
    one = kernel_problem(operation, question.layer, c, question.output_sizes)
    way = first_gpu_only(one, passed_over)
    if way is None:
        return sizes[0], (taken.engine, taken.knobs)
    return sizes[0], (
        next(number for (kind, number), how in ALGORITHMS.items() if (kind, how) == (one.operation, way)),
        {},
    )


def requests(index: int, count: int, first: int) -> Iterator[tuple[list[Any], ConvQuery]]:
    """Yield every `count`-th convolution of an endless fixed list, as a row of the survey and as a query."""
    for seed in range(100 * first + 500, 100 * first + 600):
        drawn = [
            *draw_practice(20_000, seed),
            *draw_practice(20_000, seed, seldom=True),
            *draw_everyday(10_000, seed),
        ]
        mixed = sorted(set(drawn), key=repr)
        random.Random(seed).shuffle(mixed)
        for layer, batch, dtype, last in mixed[index::count]:
            named = ConvLayer(
                dtype, last, layer.inputs, layer.outputs, layer.sizes, layer.kernel, layer.stride, layer.dilation,
                layer.groups, layer.transposed, layer.padding,
            )  # fmt: skip
            sizes = tuple(size + layer.grown for size in output_sizes(named, layer.padding))
            torchs_own = layer.groups == layer.inputs > 1 and not last
            if min(sizes) >= 1 and not torchs_own:
                yield [dtype, "last" if last else "first", batch, *layer], ConvQuery(named, batch, sizes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
