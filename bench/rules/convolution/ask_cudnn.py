"""Holds what cuDNN's library says of convolutions against what was measured, and asks it about many more.

    python -m bench.rules.convolution.ask_cudnn [--count 2000] [--handle] [--out FOLDER] [--survey SECONDS] [--jobs 15]

Needs cuDNN (`LEGROOM_CUDNN` names the library where torch has none), no GPU: layers of the table are asked of a GPU that is only described.
With `--handle` also of the real one, through a handle, as torch asks, and by its own description; that and what disagrees are
written to FOLDER. `--survey` then asks about convolutions as people write them, through the handle or of the GPU that is described, by several processes, for so many seconds:
FOLDER/convolutions-6-<part>.jsonl.gz, rows as `convolution_survey` writes them, and then for each of the three operations its engine (null where cuDNN does not say) and knobs.
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

from bench.lib.table import print_table
from bench.rules.convolution.everyday_layers import draw_everyday
from bench.rules.convolution.practice_layers import draw_practice
from legroom.gpus.catalog import find_gpu
from legroom.observe.cuda_rules.convolution.cudnn_library import (
    Attribute,
    Desk,
    Kind,
    Refusal,
    RefusedError,
    Setting,
    Type,
    choice,
    desk_of,
    find_library,
)
from legroom.observe.cuda_rules.convolution.cudnn_query import OPERATIONS, Choice, Cudnn, described
from legroom.observe.cuda_rules.convolution.gpu_only_kernels import WAYS, asked, first_hidden
from legroom.observe.cuda_rules.convolution.recorded_table import (
    UNIT,
    Layer,
    Question,
    output_sizes,
    table,
    told,
)
from legroom.observe.cuda_rules.convolution.recorded_table import described as described_layer
from legroom.observe.cuda_rules.convolution.workspace import Convolution, whole

H200 = find_gpu("h200")
Answer = tuple[int, int, dict[int, int]]
"""Bytes of workspace, engine, knobs."""


class WithHandle(Cudnn):
    """Asks as torch does: through a handle on the GPU that is there."""

    def __init__(self, functions: Any) -> None:
        super().__init__(functions, H200)
        import torch

        torch.zeros(1, device="cuda")  # a context
        self._handle = ctypes.c_void_p()
        status = functions.cudnnCreate(ctypes.byref(self._handle))
        if status:
            raise RuntimeError(f"cudnnCreate: status {status}")

    def choose_or_miss(self, question: Question, operation: Kind) -> tuple[Choice | None, list[Refusal]]:
        """With a GPU nothing is passed over."""
        return self.choose(question, operation), []

    def sizes_of(
        self, taken: Choice, passed_over: list[Refusal], question: Question, operation: Kind, c: Convolution
    ) -> tuple[int, ...]:
        """A real GPU knows what its kernels' partial sums take."""
        return (taken.workspace,)

    def _bound(
        self, desk: Desk
    ) -> tuple[Mapping[int, Setting], Mapping[int, Setting], Mapping[int, Setting]]:
        handle = (Type.HANDLE, (ctypes.c_void_p * 1)(self._handle.value))
        return {Attribute.GRAPH_HANDLE: handle}, {}, {Attribute.PLAN_HANDLE: handle}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=2000, help="how many measured layers are asked")
    parser.add_argument(
        "--seed", type=int, default=1, help="of what is drawn; a survey needs another one each time"
    )
    parser.add_argument("--handle", action="store_true", help="also ask the GPU that is there")
    parser.add_argument("--out", type=Path, default=Path("asked"))
    parser.add_argument("--survey", type=float, default=0, metavar="SECONDS")
    parser.add_argument("--jobs", type=int, default=15)
    parser.add_argument("--part", default="", help="of the survey, when it calls itself")
    options = parser.parse_args(argv)
    functions = find_library()
    if functions is None:
        print("no cuDNN that can be asked: install nvidia-cudnn-cu13, or name libcudnn.so.9 in LEGROOM_CUDNN")
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
"""Share that must agree with what was measured for a survey to be worth its time."""


def description_of_device(functions: Any) -> str:
    """The properties of the first GPU, as cuDNN writes them down."""
    try:
        with desk_of(functions) as desk:
            device = desk.make(Kind.DEVICE, {Attribute.DEVICE_ID: choice(Type.INT32, 0)})
            return desk.string(device, Attribute.DEVICE_JSON)
    except RefusedError as error:
        print("the GPU does not describe itself:", error)
        return described(H200)


Known = tuple[Question, tuple[int, ...]]


def measured(count: int, seed: int) -> list[Known]:
    """Layers of the table, drawn at random; without depthwise ones in the usual layout, which cuDNN does not see."""
    rows = [
        (layer, row)
        for layer, rows in table()
        for row in rows
        if layer.padding is not None and not (layer.groups == layer.inputs > 1 and not layer.channels_last)
    ]
    found: list[Known] = []
    for layer, row in random.Random(seed).sample(rows, min(count, len(rows))):
        sizes = tuple(output_sizes(layer, layer.padding or ()))
        found.append((Question(layer, row[0], sizes), tuple(told(row, described_layer(layer, row[0])))))
    return found


def compare(ways: dict[str, Cudnn], functions: Any, known: list[Known], out: Path) -> float:
    """Prints how often each way agrees with the table, within 1% of what the convolution reads and writes; gives the best share."""
    right: collections.Counter[tuple[str, str, str]] = collections.Counter()
    seen: collections.Counter[tuple[str, str, str]] = collections.Counter()
    refused: collections.Counter[str] = collections.Counter()
    others: list[Any] = []
    spent = dict.fromkeys(ways, 0.0)
    for question, sizes in known:
        c = described_layer(question.layer, question.batch)
        for operation, size in zip(OPERATIONS, sizes, strict=True):
            agreed = True
            for way, cudnn in ways.items():
                begun = time.perf_counter()
                said = cudnn.workspace(question, operation, c)
                spent[way] += time.perf_counter() - begun
                key = (way, operation.name.lower(), kind_of(question.layer))
                seen[key] += 1
                same = said is not None and abs(said - size) <= max(2 * UNIT, whole(c) // 100)
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
        "cuDNN's answers and what was measured", ["asked", "operation", "kind", "count", "the same"], rows
    )
    shares = {way: sum(right[key] for key in right if key[0] == way) / (3 * len(known)) for way in ways}
    for way, share in shares.items():
        print(f"{way}: {share:.2%} the same, {spent[way] / len(known) * 1000:.1f} ms a layer", flush=True)
    for words, count in refused.most_common(12):
        print(f"refused {count} times: {words}")
    with gzip.open(out / "disagreements.json.gz", "wt") as file:
        json.dump(others, file)
    return max(shares.values())


_LISTED = 300
"""So much of what disagrees is written down."""


def answered(
    cudnn: Cudnn,
    functions: Any,
    question: Question,
    operation: Kind,
    refused: collections.Counter[str],
    most: int = 1,
) -> list[Answer]:
    """The first few choices, with their knobs; fewer where cuDNN refuses to say more."""
    found: list[Answer] = []
    try:
        with desk_of(functions) as desk:
            for one in itertools.islice(cudnn.list_choices(desk, question, operation), most):
                found.append((one.workspace, one.engine, one.knobs))
    except RefusedError as error:
        refused[str(error)] += 1
    return found


def kind_of(layer: Layer) -> str:
    if layer.groups > 1:
        return "groups"
    if max(layer.kernel) == 1:
        return "one pixel"
    return "transposed" if layer.transposed else "other"


def in_parts(options: argparse.Namespace) -> int:
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
    with gzip.open(out / f"convolutions-6-{index}.jsonl.gz", "wt", compresslevel=4) as file:
        for row, question in requests(index, count, seed):
            if time.monotonic() > end:
                break
            c = described_layer(question.layer, question.batch, row[-1])
            sizes, engines = zip(
                *(said(cudnn, question, c, operation) for operation in OPERATIONS), strict=True
            )
            file.write(json.dumps([*row, *sizes, *engines]) + "\n")
            written += 1
    print(f"part {index}: {written} rows", flush=True)
    return 0


def said(
    cudnn: Cudnn, question: Question, c: Convolution, operation: Kind
) -> tuple[int, tuple[int | None, dict[int, int]]]:
    """Bytes, engine and knobs; no engine where cuDNN does not say, or its kernel's bytes are not known. A kernel that was passed over for want of a GPU counts."""
    taken, passed_over = cudnn.choose_or_miss(question, operation)
    sizes = cudnn.sizes_of(taken, passed_over, question, operation, c) if taken else ()
    if not taken or not sizes:
        return 0, (None, {})
    one = asked(operation, question.layer, c, question.output_sizes)
    way = first_hidden(one, passed_over)
    if way is None:
        return sizes[0], (taken.engine, taken.knobs)
    return sizes[0], (
        next(number for (kind, number), how in WAYS.items() if (kind, how) == (one.operation, way)),
        {},
    )


def requests(index: int, count: int, first: int) -> Iterator[tuple[list[Any], Question]]:
    """Every `count`-th convolution of an endless list that is the same everywhere, each as a row of the survey and as a question."""
    for seed in range(100 * first + 500, 100 * first + 600):
        drawn = [
            *draw_practice(20_000, seed),
            *draw_practice(20_000, seed, seldom=True),
            *draw_everyday(10_000, seed),
        ]
        mixed = sorted(set(drawn), key=repr)
        random.Random(seed).shuffle(mixed)
        for layer, batch, dtype, last in mixed[index::count]:
            named = Layer(
                dtype, last, layer.inputs, layer.outputs, layer.sizes, layer.kernel, layer.stride, layer.dilation,
                layer.groups, layer.transposed, layer.padding,
            )  # fmt: skip
            sizes = tuple(size + layer.grown for size in output_sizes(named, layer.padding))
            torchs_own = layer.groups == layer.inputs > 1 and not last
            if min(sizes) >= 1 and not torchs_own:
                yield [dtype, "last" if last else "first", batch, *layer], Question(named, batch, sizes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
