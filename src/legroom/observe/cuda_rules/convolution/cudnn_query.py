"""What cuDNN itself would take for a convolution: its library says so, and needs no GPU for it.

cuDNN's choice of kernels is not published, but since 9.8 the library answers for a GPU that is only described to it (a "device
property descriptor", meant for compiling ahead of time). torch without `cudnn.benchmark` takes the first configuration of the
heuristic's list that it may use and whose plan can be built, and allocates that plan's workspace (`try_configs` in
ATen/native/cudnn/Conv_v8.cpp): the same is asked here. A build of torch for CUDA brings the library; without one that can be asked
what was measured decides (`convolution_table`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from legroom.gpus.catalog import GpuSpec, find_gpu
from legroom.observe.cuda_rules.convolution.cudnn_library import (
    Attribute,
    Desk,
    Kind,
    Knob,
    Refusal,
    RefusedError,
    Setting,
    Type,
    choice,
    desk_of,
    factor,
    numbers,
    overhear,
    refusals,
    text,
    these,
)
from legroom.observe.cuda_rules.convolution.gpu_only_kernels import WAYS, asked, bytes_of, first_hidden
from legroom.observe.cuda_rules.convolution.recorded_table import Layer, Question
from legroom.observe.cuda_rules.convolution.split_k import most_sums, product_in_groups, turned
from legroom.observe.cuda_rules.convolution.workspace import Convolution
from legroom.observe.cuda_rules.convolution.workspace_formulas import cooked, of_kernel

OPERATIONS = (Kind.FORWARD, Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT)
"""In the order of `Workspaces`."""


_LITTLE = 200
"""Bytes that kernels keep for themselves at most."""
HOPPER = (9, 0)
"""Compute capability of the GPUs whose kernels' partial sums are known."""


class Choice(NamedTuple):
    """What cuDNN would do."""

    workspace: int
    """Bytes."""
    engine: int
    """cuDNN's number for a family of kernels."""
    rank: int
    """Its place in the heuristic's list; beyond `_ALL` in the one of last resorts."""
    knobs: dict[int, int]
    """Its settings, by cuDNN's numbers for them."""

    @property
    def cluster(self) -> tuple[int, int] | None:
        """Rows and columns of blocks that work together, of kernels that may split their sums."""
        if self.knobs.get(Knob.NO_WORKSPACE, 1) or Knob.CLUSTER_ROWS not in self.knobs:
            return None
        return self.knobs[Knob.CLUSTER_ROWS], self.knobs[Knob.CLUSTER_COLUMNS]


class Cudnn:
    """The library, asked about one GPU."""

    def __init__(self, functions: Any, gpu: GpuSpec, description: str = "") -> None:
        """`description`: how cuDNN describes this very GPU, where that is known."""
        self._functions = functions
        self._gpu = gpu
        self._description = description or described(gpu)

    def choose(self, question: Question, operation: Kind) -> Choice | None:
        """What torch would run; None where cuDNN does not say."""
        try:
            with desk_of(self._functions) as desk:
                return next(self.list_choices(desk, question, operation), None)
        except RefusedError:
            return None

    def workspace(self, question: Question, operation: Kind, c: Convolution) -> int | None:
        """Bytes; None where cuDNN does not say."""
        sizes = self.workspaces(question, operation, c)
        return sizes[0] if sizes else None

    def workspaces(self, question: Question, operation: Kind, c: Convolution) -> tuple[int, ...]:
        """The likeliest size, and what it may be instead; nothing where cuDNN does not say. `c`: the same convolution, as rules see it."""
        taken, passed_over = self.choose_or_miss(question, operation)
        return self.sizes_of(taken, passed_over, question, operation, c) if taken else ()

    def sizes_of(
        self, taken: Choice, passed_over: list[Refusal], question: Question, operation: Kind, c: Convolution
    ) -> tuple[int, ...]:
        """The same of a choice. Partial sums of Hopper's kernels are reckoned here: they depend on how many blocks run at once, which only a real GPU knows; there may be none."""
        one = asked(operation, question.layer, c, question.output_sizes)
        hidden = first_hidden(one, passed_over)
        if hidden is not None:
            size = bytes_of(hidden, one)
            return () if size is None else (size,)
        if taken.cluster is None or self._gpu.capability != HOPPER:
            return (taken.workspace,)
        split = of_kernel(taken.engine, taken.knobs, c, operation)
        sums, plain = (cooked(recipe, question, c, operation) for recipe in (split, split[0] + "+"))
        if taken.workspace < plain - _LITTLE:  # tensors beyond 2 GiB are computed in parts
            return (taken.workspace,)
        if sums == plain:
            sums = plain = min(plain, taken.workspace)
        most = most_sums(product_in_groups(c, operation), taken.knobs[Knob.TILE], taken.cluster)
        return (sums, plain, plain + most)

    def choose_or_miss(self, question: Question, operation: Kind) -> tuple[Choice | None, list[Refusal]]:
        """What torch would run, and the kernels that cuDNN would have put before it, but for the GPU that is not there. The log tells of these while the list is made; mostly its
        first kernel is taken, so one question answers both."""
        try:
            with desk_of(self._functions) as desk:
                heuristic = self._heuristic(desk, question, operation, _INSTANT)
                with overhear(self._functions) as heard:
                    listed = desk.descriptors(heuristic, Attribute.HEURISTIC_RESULTS, Kind.CONFIGURATION, 1)
                taken = self._built(desk, question, listed[0], 0) if listed else None
                if taken is None:
                    taken = next(self.list_choices(desk, question, operation), None)
                    most = min(taken.rank + 1, _ALL) if taken else _ALL
                    heuristic = self._heuristic(desk, question, operation, _INSTANT)
                    with overhear(self._functions) as heard:
                        desk.descriptors(heuristic, Attribute.HEURISTIC_RESULTS, Kind.CONFIGURATION, most)
        except RefusedError:
            return None, []
        return taken, refusals(heard)

    def list_choices(self, desk: Desk, question: Question, operation: Kind) -> Iterator[Choice]:
        """What torch would try, one after the other."""
        for mode, first, most in ((_INSTANT, 0, _FIRST), (_INSTANT, _FIRST, _ALL), (_FALLBACK, 0, _ALL)):
            heuristic = self._heuristic(desk, question, operation, mode)
            listed = desk.descriptors(heuristic, Attribute.HEURISTIC_RESULTS, Kind.CONFIGURATION, most)
            before = _ALL if mode == _FALLBACK else first
            for rank, configuration in enumerate(listed[first:], before):
                if (built := self._built(desk, question, configuration, rank)) is not None:
                    yield built

    def _built(self, desk: Desk, question: Question, configuration: int, rank: int) -> Choice | None:
        """What one kernel of the list takes; None where torch may not run it, or it cannot be planned."""
        engine = desk.descriptors(configuration, Attribute.CONFIGURATION_ENGINE, Kind.ENGINE, 1)[0]
        if not _may_run(desk.choices(engine, Attribute.ENGINE_NOTES, Type.NOTE), question):
            return None
        _, _, to_plan = self._bound(desk)
        try:
            plan = desk.make(Kind.PLAN, {Attribute.PLAN_CONFIGURATION: these(configuration), **to_plan})
        except RefusedError:
            return None
        workspace = desk.number(plan, Attribute.PLAN_WORKSPACE)
        return Choice(
            workspace, desk.number(engine, Attribute.ENGINE_INDEX), rank, _knobs(desk, configuration)
        )

    def _heuristic(self, desk: Desk, question: Question, operation: Kind, mode: int) -> int:
        """What lists the kernels for an operation."""
        described = _operation(desk, question, operation)
        to_graph, to_heuristic, _ = self._bound(desk)
        graph = desk.make(Kind.GRAPH, {Attribute.GRAPH_OPERATIONS: these(described), **to_graph})
        settings = {
            Attribute.HEURISTIC_GRAPH: these(graph),
            Attribute.HEURISTIC_MODE: choice(Type.HEURISTIC_MODE, mode),
            **to_heuristic,
        }
        return desk.make(Kind.HEURISTIC, settings)

    def _bound(
        self, desk: Desk
    ) -> tuple[Mapping[int, Setting], Mapping[int, Setting], Mapping[int, Setting]]:
        """What says which GPU is meant, for a graph, a heuristic and a plan."""
        gpu = these(desk.make(Kind.DEVICE, {Attribute.DEVICE_JSON: text(self._description)}))
        return {}, {Attribute.HEURISTIC_DEVICE: gpu}, {Attribute.PLAN_DEVICE: gpu}


@lru_cache(maxsize=1)
def tells_all(functions: Any) -> bool:
    """Whether this library's log tells of kernels that it passes over (or it offers them, as there is a GPU): asked about a convolution that such
    a one computes. Where it does not, what it says of convolutions that they might compute is not to be trusted."""
    layer = Layer("float32", False, 64, 64, (32, 32), (1, 1), (1, 1), (1, 1), 1, False, (0, 0))
    question = Question(layer, 8, (32, 32))
    cudnn = Cudnn(functions, find_gpu("h200"))
    taken, passed_over = cudnn.choose_or_miss(question, Kind.FORWARD)
    if taken is None:
        return False
    numbers = {taken.engine, *(one.engine for one in passed_over)}
    return any((Kind.FORWARD, number) in WAYS for number in numbers)


def _knobs(desk: Desk, configuration: int) -> dict[int, int]:
    try:
        listed = desk.descriptors(configuration, Attribute.CONFIGURATION_KNOBS, Kind.KNOB, _MOST_KNOBS)
    except RefusedError:
        return {}
    return {
        desk.choices(knob, Attribute.KNOB_NAME, Type.KNOB, 1)[0]: desk.number(knob, Attribute.KNOB_VALUE)
        for knob in listed
    }


_MOST_KNOBS = 24
_INSTANT, _FALLBACK = 0, 2
"""Modes of the heuristic: the one that torch asks, and the one it asks when nothing of the first can run."""
_FIRST, _ALL = 4, 100
"""How many of its list are looked at: mostly the first is taken."""


def _may_run(notes: Sequence[int], question: Question) -> bool:
    """As `filterEngineConfigs` in Conv_v8.cpp has it."""
    if _ROUNDS_INPUTS in notes or (question.deterministic and _NOT_DETERMINISTIC in notes):
        return False
    return not (question.layer.dtype == "float32_strict" and _TENSOR_CORE in notes)


_TENSOR_CORE, _ROUNDS_INPUTS, _NOT_DETERMINISTIC = 0, 1, 4
"""Notes on an engine."""


def _operation(desk: Desk, question: Question, operation: Kind) -> int:
    """The descriptor of what is computed. Over one dimension torch computes pictures that are one pixel high."""
    layer = question.layer
    given = (question.batch, layer.inputs, *_flat(layer.sizes, 1))
    made = (question.batch, layer.outputs, *_flat(question.output_sizes, 1))
    x, y = (made, given) if layer.transposed else (given, made)
    weights = (y[1], x[1] // layer.groups, *_flat(layer.kernel, 1))
    operation = turned(operation, layer.transposed)
    padding = numbers(*_flat(layer.padding or (0,) * len(layer.sizes), 0))
    convolution = desk.make(
        Kind.CONVOLUTION,
        {
            Attribute.CONVOLUTION_COMPUTES_IN: choice(Type.DATA, _DATA["float32"]),
            Attribute.CONVOLUTION_MODE: choice(Type.CONVOLUTION_MODE, _CROSS_CORRELATION),
            Attribute.CONVOLUTION_DIMENSIONS: numbers(len(x) - 2),
            Attribute.CONVOLUTION_STRIDES: numbers(*_flat(layer.stride, 1)),
            Attribute.CONVOLUTION_PADDING_BEFORE: padding,
            Attribute.CONVOLUTION_PADDING_AFTER: padding,
            Attribute.CONVOLUTION_DILATIONS: numbers(*_flat(layer.dilation, 1)),
        },
    )
    tensors = [_tensor(desk, sizes, layer, ord(name)) for name, sizes in (("w", weights), ("x", x), ("y", y))]
    first = _FIRST_ATTRIBUTE[operation]
    settings = (factor(1.0), factor(0.0), *map(these, (convolution, *tensors)))
    return desk.make(operation, {first + place: setting for place, setting in enumerate(settings)})


_CROSS_CORRELATION = 1
_DATA = {"float32": 0, "float32_strict": 0, "float16": 2, "bfloat16": 9}
_FIRST_ATTRIBUTE = {
    Kind.FORWARD: Attribute.FORWARD_ALPHA,
    Kind.INPUT_GRADIENT: Attribute.INPUT_GRADIENT_ALPHA,
    Kind.WEIGHT_GRADIENT: Attribute.WEIGHT_GRADIENT_ALPHA,
}
"""Of each operation six attributes follow each other: two factors, the convolution, weights, input and output."""


def _tensor(desk: Desk, sizes: Sequence[int], layer: Layer, name: int) -> int:
    return desk.make(
        Kind.TENSOR,
        {
            Attribute.TENSOR_TYPE: choice(Type.DATA, _DATA[layer.dtype]),
            Attribute.TENSOR_SIZES: numbers(*sizes),
            Attribute.TENSOR_STRIDES: numbers(*_strides(sizes, layer.channels_last)),
            Attribute.TENSOR_NAME: numbers(name),
            Attribute.TENSOR_ALIGNMENT: numbers(_ALIGNMENT),
        },
    )


_ALIGNMENT = 32
"""Bytes: as much as torch looks for, and tensors of the caching allocator have."""


def _strides(sizes: Sequence[int], channels_last: bool) -> list[int]:
    places = range(len(sizes))
    strides, step = [0] * len(sizes), 1
    for place in (1, *reversed(places[2:]), 0) if channels_last else reversed(places):
        strides[place] = step
        step *= sizes[place]
    return strides


def _flat(values: Sequence[int], before: int) -> tuple[int, ...]:
    return (before, *values) if len(values) == 1 else tuple(values)


def described(gpu: GpuSpec) -> str:
    """A GPU as cuDNN describes one to itself, in JSON.

    Clock rates, caches and the driver's version have to be there; of the convolutions that were tried none depends on them.
    """
    return json.dumps(
        {
            "deviceName": gpu.name,
            "cudaDeviceId": 0,
            "pciDeviceId": 0,
            "deviceVer": gpu.capability[0] * 100 + gpu.capability[1] * 10,
            "driverVer": 13_000,
            "totalGlobalMem": gpu.total,
            "multiProcessorCount": gpu.sm_count,
            "maxThreadsPerSM": gpu.threads_per_sm,
            "maxCtasPerSM": _BLOCKS.get(gpu.capability, 32),
            "maxSharedMemoryPerBlock": 48 * 1024,
            "maxSharedMemoryPerBlockOptin": gpu.shared_memory_per_block,
            "reservedSharedMemoryPerBlock": 1024 if gpu.capability[0] >= 8 else 0,
            "maxThreadsPerBlock": 1024,
            "maxBlockSize": [1024, 1024, 64],
            "maxGridSize": [2**31 - 1, 65_535, 65_535],
            "regsPerBlock": 65_536,
            "maxRegistersPerSM": 65_536,
            "warpSize": 32,
            "l2CacheSize": 60 << 20,
            "smClockRateKHz": 1_980_000,
            "memClockRateKHz": 3_201_000,
            "isTccDriver": 0,
            "supportCoopLaunch": 1,
        }
    )


_BLOCKS = {(7, 5): 16, (8, 6): 16, (8, 7): 16, (8, 9): 24, (12, 0): 24, (12, 1): 24}
"""Blocks on one multiprocessor at most: from the table of compute capabilities in the CUDA programming guide."""
