"""Queries the cuDNN library for the kernel and the workspace of a convolution. The query needs no GPU.

cuDNN's choice of kernels is not documented. Since 9.8, the library can be queried about a GPU that is not present. The
query contains a description of the GPU (a "device property descriptor", for ahead-of-time compilation).

Without `cudnn.benchmark`, torch uses the first configuration in the heuristic's list that is allowed and whose plan can
be built (`try_configs` in ATen/native/cudnn/Conv_v8.cpp). This module selects the configuration in the same way.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from legroom.gpus.catalog import GpuSpec, find_gpu
from legroom.observe.cuda_rules.convolution.cudnn_library import (
    Attribute,
    AttributeType,
    AttributeValue,
    ConvOperation,
    DescriptorSet,
    DescriptorType,
    Knob,
    RejectedError,
    SkippedKernel,
    captured_log,
    descriptor_set,
    descriptor_values,
    enum_value,
    float_value,
    int_values,
    skipped_kernels,
    string_value,
)
from legroom.observe.cuda_rules.convolution.gpu_only_kernels import (
    ALGORITHMS,
    algorithm_workspace,
    first_gpu_only,
    kernel_problem,
)
from legroom.observe.cuda_rules.convolution.recorded_table import ConvLayer, ConvQuery
from legroom.observe.cuda_rules.convolution.split_k import (
    actual_operation,
    max_partial_sums,
    product_in_groups,
)
from legroom.observe.cuda_rules.convolution.workspace_formulas import formula_bytes, kernel_formula
from legroom.observe.cuda_rules.convolution.workspace_rules import Convolution

OPERATIONS = (ConvOperation.FORWARD, ConvOperation.INPUT_GRADIENT, ConvOperation.WEIGHT_GRADIENT)


_MAX_OVERHEAD = 200
"""The maximum number of bytes that kernels use in addition to copies and partial sums."""
HOPPER = (9, 0)
"""The compute capability of the GPUs for which the workspaces of split-K kernels are known."""


class KernelChoice(NamedTuple):
    workspace: int
    engine: int
    rank: int
    """The position of the kernel in the heuristic's list. A position of `_ALL` or higher refers to the list of
    fallbacks.
    """
    knobs: dict[int, int]
    """The value of each setting, by cuDNN's number for the setting."""

    @property
    def cluster(self) -> tuple[int, int] | None:
        """The rows and columns of a cluster of blocks. Only split-K kernels have clusters."""
        if self.knobs.get(Knob.NO_WORKSPACE, 1) or Knob.CLUSTER_ROWS not in self.knobs:
            return None
        return self.knobs[Knob.CLUSTER_ROWS], self.knobs[Knob.CLUSTER_COLUMNS]


class Cudnn:
    def __init__(self, functions: Any, gpu: GpuSpec, description: str = "") -> None:
        """`description` is cuDNN's own description of the GPU, if it is known."""
        self._functions = functions
        self._gpu = gpu
        self._description = description or describe_gpu(gpu)

    def select(self, query: ConvQuery, operation: ConvOperation) -> KernelChoice | None:
        try:
            with descriptor_set(self._functions) as descriptors:
                return next(self.candidates(descriptors, query, operation), None)
        except RejectedError:
            return None

    def workspace(self, query: ConvQuery, operation: ConvOperation, c: Convolution) -> int | None:
        sizes = self.workspaces(query, operation, c)
        return sizes[0] if sizes else None

    def workspaces(self, query: ConvQuery, operation: ConvOperation, c: Convolution) -> tuple[int, ...]:
        """Return the most likely size in bytes and its alternatives, or an empty tuple if cuDNN returns no result. `c`
        describes the same convolution as `query`, in the form that the rules use.
        """
        choice, skipped = self.select_kernel(query, operation)
        return self.sizes_of(choice, skipped, query, operation, c) if choice else ()

    def sizes_of(
        self,
        choice: KernelChoice,
        skipped: list[SkippedKernel],
        query: ConvQuery,
        operation: ConvOperation,
        c: Convolution,
    ) -> tuple[int, ...]:
        """Return the result of `workspaces` for a selected kernel. The partial sums of Hopper's split-K kernels depend
        on the number of blocks that run at once. Without a real GPU, cuDNN cannot determine this number, so this
        function computes the partial sums itself. The size without partial sums is returned as an alternative.
        """
        problem = kernel_problem(operation, query.layer, c, query.output_sizes)
        gpu_only = first_gpu_only(problem, skipped)
        if gpu_only is not None:
            size = algorithm_workspace(gpu_only, problem)
            return () if size is None else (size,)
        if choice.cluster is None or self._gpu.capability != HOPPER:
            return (choice.workspace,)
        split = kernel_formula(choice.engine, choice.knobs, c, operation)
        with_sums, without_sums = (
            formula_bytes(formula, query, c, operation) for formula in (split, split[0] + "+")
        )
        if choice.workspace < without_sums - _MAX_OVERHEAD:  # tensors larger than 2 GiB are split
            return (choice.workspace,)
        if with_sums == without_sums:
            with_sums = without_sums = min(without_sums, choice.workspace)
        most = max_partial_sums(product_in_groups(c, operation), choice.knobs[Knob.TILE], choice.cluster)
        return (with_sums, without_sums, without_sums + most)

    def select_kernel(
        self, query: ConvQuery, operation: ConvOperation
    ) -> tuple[KernelChoice | None, list[SkippedKernel]]:
        """Return the kernel that torch would run, and the kernels before it that cuDNN skipped. cuDNN may skip a kernel
        because there is no GPU, and logs skipped kernels while it builds the list. Torch usually runs the first kernel
        in the list, so a single query returns the kernel and the log.
        """
        try:
            with descriptor_set(self._functions) as descriptors:
                heuristic = self._heuristic(descriptors, query, operation, _INSTANT)
                with captured_log(self._functions) as messages:
                    listed = descriptors.descriptors(
                        heuristic, Attribute.HEURISTIC_RESULTS, DescriptorType.CONFIGURATION, 1
                    )
                choice = self._built(descriptors, query, listed[0], 0) if listed else None
                if choice is None:
                    choice = next(self.candidates(descriptors, query, operation), None)
                    most = min(choice.rank + 1, _ALL) if choice else _ALL
                    heuristic = self._heuristic(descriptors, query, operation, _INSTANT)
                    with captured_log(self._functions) as messages:
                        descriptors.descriptors(
                            heuristic, Attribute.HEURISTIC_RESULTS, DescriptorType.CONFIGURATION, most
                        )
        except RejectedError:
            return None, []
        return choice, skipped_kernels(messages)

    def candidates(
        self, descriptors: DescriptorSet, query: ConvQuery, operation: ConvOperation
    ) -> Iterator[KernelChoice]:
        for mode, first, most in ((_INSTANT, 0, _FIRST), (_INSTANT, _FIRST, _ALL), (_FALLBACK, 0, _ALL)):
            heuristic = self._heuristic(descriptors, query, operation, mode)
            listed = descriptors.descriptors(
                heuristic, Attribute.HEURISTIC_RESULTS, DescriptorType.CONFIGURATION, most
            )
            before = _ALL if mode == _FALLBACK else first
            for rank, configuration in enumerate(listed[first:], before):
                if (built := self._built(descriptors, query, configuration, rank)) is not None:
                    yield built

    def _built(
        self, descriptors: DescriptorSet, query: ConvQuery, configuration: int, rank: int
    ) -> KernelChoice | None:
        """Return the kernel of an engine configuration and the size of its workspace. Return None if torch does not
        allow the kernel, or if cuDNN cannot build a plan for it.
        """
        engine = descriptors.descriptors(
            configuration, Attribute.CONFIGURATION_ENGINE, DescriptorType.ENGINE, 1
        )[0]
        if not _is_allowed(descriptors.enums(engine, Attribute.ENGINE_NOTES, AttributeType.NOTE), query):
            return None
        _, _, plan_attributes = self._device_attributes(descriptors)
        try:
            plan = descriptors.create(
                DescriptorType.PLAN,
                {Attribute.PLAN_CONFIGURATION: descriptor_values(configuration), **plan_attributes},
            )
        except RejectedError:
            return None
        workspace = descriptors.number(plan, Attribute.PLAN_WORKSPACE)
        return KernelChoice(
            workspace,
            descriptors.number(engine, Attribute.ENGINE_INDEX),
            rank,
            _knobs(descriptors, configuration),
        )

    def _heuristic(
        self, descriptors: DescriptorSet, query: ConvQuery, operation: ConvOperation, mode: int
    ) -> int:
        operation_descriptor = _operation(descriptors, query, operation)
        graph_attributes, heuristic_attributes, _ = self._device_attributes(descriptors)
        graph = descriptors.create(
            DescriptorType.GRAPH,
            {Attribute.GRAPH_OPERATIONS: descriptor_values(operation_descriptor), **graph_attributes},
        )
        attributes = {
            Attribute.HEURISTIC_GRAPH: descriptor_values(graph),
            Attribute.HEURISTIC_MODE: enum_value(AttributeType.HEURISTIC_MODE, mode),
            **heuristic_attributes,
        }
        return descriptors.create(DescriptorType.HEURISTIC, attributes)

    def _device_attributes(
        self, descriptors: DescriptorSet
    ) -> tuple[Mapping[int, AttributeValue], Mapping[int, AttributeValue], Mapping[int, AttributeValue]]:
        gpu = descriptor_values(
            descriptors.create(
                DescriptorType.DEVICE, {Attribute.DEVICE_JSON: string_value(self._description)}
            )
        )
        return {}, {Attribute.HEURISTIC_DEVICE: gpu}, {Attribute.PLAN_DEVICE: gpu}


@lru_cache(maxsize=1)
def logs_skipped_kernels(functions: Any) -> bool:
    """Return whether the library logs the kernels that it skips because there is no GPU.

    The check queries a convolution for which cuDNN prefers one of these kernels. The result is also True if cuDNN
    selects this kernel, which happens only if a GPU is present. If the result is False, the library's results are
    unreliable for convolutions that the skipped kernels might compute.
    """
    layer = ConvLayer("float32", False, 64, 64, (32, 32), (1, 1), (1, 1), (1, 1), 1, False, (0, 0))
    query = ConvQuery(layer, 8, (32, 32))
    cudnn = Cudnn(functions, find_gpu("h200"))
    choice, skipped = cudnn.select_kernel(query, ConvOperation.FORWARD)
    if choice is None:
        return False
    numbers = {choice.engine, *(one.engine for one in skipped)}
    return any((ConvOperation.FORWARD, number) in ALGORITHMS for number in numbers)


def _knobs(descriptors: DescriptorSet, configuration: int) -> dict[int, int]:
    try:
        listed = descriptors.descriptors(
            configuration, Attribute.CONFIGURATION_KNOBS, DescriptorType.KNOB, _MOST_KNOBS
        )
    except RejectedError:
        return {}
    return {
        descriptors.enums(knob, Attribute.KNOB_NAME, AttributeType.KNOB, 1)[0]: descriptors.number(
            knob, Attribute.KNOB_VALUE
        )
        for knob in listed
    }


_MOST_KNOBS = 24
_INSTANT, _FALLBACK = 0, 2
"""The heuristic modes that torch uses: the default mode, and the fallback mode if no kernel of the default mode can
run.
"""
_FIRST, _ALL = 4, 100
"""The number of kernels to request from cuDNN. Torch usually runs the first kernel, so only a few kernels are requested
at first.
"""


def _is_allowed(notes: Sequence[int], query: ConvQuery) -> bool:
    if _ROUNDS_INPUTS in notes or (query.deterministic and _NOT_DETERMINISTIC in notes):
        return False
    return not (query.layer.dtype == "float32_strict" and _TENSOR_CORE in notes)


_TENSOR_CORE, _ROUNDS_INPUTS, _NOT_DETERMINISTIC = 0, 1, 4


def _operation(descriptors: DescriptorSet, query: ConvQuery, operation: ConvOperation) -> int:
    # Torch computes a 1D convolution on images of height 1.
    layer = query.layer
    input = (query.batch, layer.inputs, *_2d(layer.sizes, 1))
    output = (query.batch, layer.outputs, *_2d(query.output_sizes, 1))
    x, y = (output, input) if layer.transposed else (input, output)
    weights = (y[1], x[1] // layer.groups, *_2d(layer.kernel, 1))
    operation = actual_operation(operation, layer.transposed)
    padding = int_values(*_2d(layer.padding or (0,) * len(layer.sizes), 0))
    convolution = descriptors.create(
        DescriptorType.CONVOLUTION,
        {
            Attribute.CONVOLUTION_COMPUTES_IN: enum_value(AttributeType.DATA, _DATA["float32"]),
            Attribute.CONVOLUTION_MODE: enum_value(AttributeType.CONVOLUTION_MODE, _CROSS_CORRELATION),
            Attribute.CONVOLUTION_DIMENSIONS: int_values(len(x) - 2),
            Attribute.CONVOLUTION_STRIDES: int_values(*_2d(layer.stride, 1)),
            Attribute.CONVOLUTION_PADDING_BEFORE: padding,
            Attribute.CONVOLUTION_PADDING_AFTER: padding,
            Attribute.CONVOLUTION_DILATIONS: int_values(*_2d(layer.dilation, 1)),
        },
    )
    tensors = [
        _tensor(descriptors, sizes, layer, ord(name)) for name, sizes in (("w", weights), ("x", x), ("y", y))
    ]
    first = _FIRST_ATTRIBUTE[operation]
    attributes = (float_value(1.0), float_value(0.0), *map(descriptor_values, (convolution, *tensors)))
    return descriptors.create(operation, {first + index: value for index, value in enumerate(attributes)})


_CROSS_CORRELATION = 1
_DATA = {"float32": 0, "float32_strict": 0, "float16": 2, "bfloat16": 9}
_FIRST_ATTRIBUTE = {
    ConvOperation.FORWARD: Attribute.FORWARD_ALPHA,
    ConvOperation.INPUT_GRADIENT: Attribute.INPUT_GRADIENT_ALPHA,
    ConvOperation.WEIGHT_GRADIENT: Attribute.WEIGHT_GRADIENT_ALPHA,
}
"""The index of the first attribute of each operation. The six attributes have consecutive numbers: two scaling factors
(alpha and beta), the convolution, the weights, the input and the output.
"""


def _tensor(descriptors: DescriptorSet, sizes: Sequence[int], layer: ConvLayer, name: int) -> int:
    return descriptors.create(
        DescriptorType.TENSOR,
        {
            Attribute.TENSOR_TYPE: enum_value(AttributeType.DATA, _DATA[layer.dtype]),
            Attribute.TENSOR_SIZES: int_values(*sizes),
            Attribute.TENSOR_STRIDES: int_values(*_strides(sizes, layer.channels_last)),
            Attribute.TENSOR_NAME: int_values(name),
            Attribute.TENSOR_ALIGNMENT: int_values(_ALIGNMENT),
        },
    )


_ALIGNMENT = 32
"""The alignment of tensors in bytes. PyTorch checks for this alignment, and tensors from the caching allocator have it.
"""


def _strides(sizes: Sequence[int], channels_last: bool) -> list[int]:
    dims = range(len(sizes))
    strides, step = [0] * len(sizes), 1
    for dim in (1, *reversed(dims[2:]), 0) if channels_last else reversed(dims):
        strides[dim] = step
        step *= sizes[dim]
    return strides


def _2d(values: Sequence[int], before: int) -> tuple[int, ...]:
    return (before, *values) if len(values) == 1 else tuple(values)


def describe_gpu(gpu: GpuSpec) -> str:
    """Return the device properties of a GPU in cuDNN's JSON format.

    Clock rates, cache size and driver version are required, but had no effect on any tested result.
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
            "maxCtasPerSM": _BLOCKS_PER_SM.get(gpu.capability, 32),
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


_BLOCKS_PER_SM = {(7, 5): 16, (8, 6): 16, (8, 7): 16, (8, 9): 24, (12, 0): 24, (12, 1): 24}
"""The maximum number of blocks per SM by compute capability, from the CUDA programming guide."""
