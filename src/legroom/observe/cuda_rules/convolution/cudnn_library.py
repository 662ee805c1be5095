"""Access to the cuDNN library for queries: loads the library, and creates and reads its descriptors.

Every object in cuDNN's graph API is an opaque descriptor with numbered attributes. The numbers of the attributes come
from cudnn_graph.h. A `DescriptorSet` creates the descriptors of one query and destroys them after the query. Every call
is checked: if cuDNN rejects a call, `RejectedError` is raised.
"""

import ctypes
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

from legroom.observe.cuda_rules.convolution.cudnn_location import CUBLAS_LT, library_paths

OLDEST_VERSION = 90_800
"""The first cuDNN version that can be queried about a GPU that is not present (9.8)."""


class ConvOperation(IntEnum):
    FORWARD = 10
    WEIGHT_GRADIENT = 11
    INPUT_GRADIENT = 12


class DescriptorType(IntEnum):
    CONVOLUTION = 1
    ENGINE = 2
    CONFIGURATION = 3
    HEURISTIC = 4
    PLAN = 5
    KNOB = 7
    GRAPH = 15
    TENSOR = 17
    DEVICE = 38


class Attribute(IntEnum):
    CONVOLUTION_COMPUTES_IN = 100
    CONVOLUTION_MODE = 101
    CONVOLUTION_DILATIONS = 102
    CONVOLUTION_STRIDES = 103
    CONVOLUTION_PADDING_AFTER = 104
    CONVOLUTION_PADDING_BEFORE = 105
    CONVOLUTION_DIMENSIONS = 106
    HEURISTIC_MODE = 200
    HEURISTIC_GRAPH = 201
    HEURISTIC_RESULTS = 202
    HEURISTIC_DEVICE = 204
    CONFIGURATION_ENGINE = 300
    CONFIGURATION_KNOBS = 302
    PLAN_HANDLE = 400
    PLAN_CONFIGURATION = 401
    PLAN_WORKSPACE = 402
    PLAN_DEVICE = 407
    KNOB_NAME = 600
    KNOB_VALUE = 601
    FORWARD_ALPHA = 700
    INPUT_GRADIENT_ALPHA = 706
    WEIGHT_GRADIENT_ALPHA = 712
    GRAPH_HANDLE = 800
    GRAPH_OPERATIONS = 801
    TENSOR_ALIGNMENT = 900
    TENSOR_TYPE = 901
    TENSOR_SIZES = 902
    TENSOR_STRIDES = 903
    TENSOR_NAME = 906
    ENGINE_INDEX = 1301
    ENGINE_NOTES = 1303
    DEVICE_ID = 2700
    DEVICE_JSON = 2702


class AttributeType(IntEnum):
    HANDLE = 0
    DATA = 1
    INT64 = 3
    FLOAT = 4
    CONVOLUTION_MODE = 7
    HEURISTIC_MODE = 8
    KNOB = 9
    NOTE = 11
    DESCRIPTOR = 15
    INT32 = 23
    CHARACTER = 24


class Knob(IntEnum):
    """Kernel settings ("knobs" in cuDNN)."""

    COPIES = 0
    """The number of copies of the weight gradient."""
    TILE = 2
    BUFFERS = 12
    """The number of copies of the accumulated result, each padded to whole tiles."""
    NO_WORKSPACE = 25
    CLUSTER_ROWS = 27
    CLUSTER_COLUMNS = 28


class RejectedError(Exception):
    pass


AttributeValue = tuple[AttributeType, Any]


def int_values(*values: int) -> AttributeValue:
    return AttributeType.INT64, (ctypes.c_int64 * len(values))(*values)


def enum_value(type: AttributeType, value: int) -> AttributeValue:
    return type, (ctypes.c_int * 1)(value)


def float_value(value: float) -> AttributeValue:
    return AttributeType.FLOAT, (ctypes.c_float * 1)(value)


def string_value(value: str) -> AttributeValue:
    encoded = value.encode()
    return AttributeType.CHARACTER, (ctypes.c_char * len(encoded)).from_buffer_copy(encoded)


def descriptor_values(*descriptors: int) -> AttributeValue:
    return AttributeType.DESCRIPTOR, (ctypes.c_void_p * len(descriptors))(*descriptors)


class DescriptorSet:
    def __init__(self, functions: Any) -> None:
        self._functions = functions
        self._descriptors: list[int] = []

    def create(self, kind: int, attributes: Mapping[int, AttributeValue]) -> int:
        descriptor = self._new(kind)
        for name, (type, values) in attributes.items():
            status = self._functions.cudnnBackendSetAttribute(
                ctypes.c_void_p(descriptor), int(name), int(type), ctypes.c_int64(len(values)), values
            )
            self._check(status, f"attribute {name}")
        self._check(self._functions.cudnnBackendFinalize(ctypes.c_void_p(descriptor)), f"descriptor {kind}")
        return descriptor

    def descriptors(self, of: int, name: Attribute, kind: int, most: int) -> list[int]:
        found = [self._new(kind) for _ in range(most)]
        buffer = (ctypes.c_void_p * most)(*found)
        return found[: min(most, self._read(of, name, AttributeType.DESCRIPTOR, buffer))]

    def enums(self, of: int, name: Attribute, type: AttributeType, most: int = 32) -> list[int]:
        buffer = (ctypes.c_int * most)()
        return list(buffer[: self._read(of, name, type, buffer)])

    def number(self, of: int, name: Attribute) -> int:
        buffer = (ctypes.c_int64 * 1)()
        self._read(of, name, AttributeType.INT64, buffer)
        return int(buffer[0])

    def string(self, of: int, name: Attribute, most: int = 65_536) -> str:
        buffer = (ctypes.c_char * most)()
        return buffer.raw[: self._read(of, name, AttributeType.CHARACTER, buffer)].rstrip(b"\0").decode()

    def destroy(self) -> None:
        while self._descriptors:
            self._functions.cudnnBackendDestroyDescriptor(ctypes.c_void_p(self._descriptors.pop()))

    def _new(self, kind: int) -> int:
        created = ctypes.c_void_p()
        self._check(
            self._functions.cudnnBackendCreateDescriptor(int(kind), ctypes.byref(created)),
            f"descriptor {kind}",
        )
        self._descriptors.append(created.value or 0)
        return created.value or 0

    def _read(self, of: int, name: Attribute, type: AttributeType, buffer: Any) -> int:
        count = ctypes.c_int64()
        status = self._functions.cudnnBackendGetAttribute(
            ctypes.c_void_p(of),
            int(name),
            int(type),
            ctypes.c_int64(len(buffer)),
            ctypes.byref(count),
            buffer,
        )
        self._check(status, f"attribute {name}")
        return count.value

    def _check(self, status: int, what: str) -> None:
        if status:
            message = ctypes.create_string_buffer(1000)
            self._functions.cudnnGetLastErrorString(message, ctypes.c_size_t(len(message)))
            raise RejectedError(f"{what}: status {status}, {message.value.decode(errors='replace')}")


class SkippedKernel(NamedTuple):
    engine: int
    reason: str


@contextmanager
def captured_log(functions: Any) -> Iterator[list[str]]:
    """Collect cuDNN's log messages within the block, one message per call. The list is complete only after the block."""
    messages: list[str] = []

    def write(_severity: int, _data: Any, _call: Any, message: int) -> None:
        lines = []
        while line := ctypes.string_at(message):  # each line ends with a zero byte, the last one with two
            lines.append(line.decode(errors="replace"))
            message += len(line) + 1
        messages.append("\n".join(lines))

    callback = _CALLBACK(write)
    before = ctypes.c_uint(), ctypes.c_void_p(), ctypes.c_void_p()
    functions.cudnnGetCallback(*map(ctypes.byref, before))
    functions.cudnnSetCallback(ctypes.c_uint(_INFORMATION), None, callback)
    try:
        yield messages
    finally:
        functions.cudnnSetCallback(*before)


_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_INFORMATION = 1 << 3


def skipped_kernels(messages: list[str]) -> list[SkippedKernel]:
    return [
        SkippedKernel(int(found[1]), found[2])
        for message in messages
        if "support_checks" in message
        for found in re.finditer(r'"engineId":(\d+)(.*?)(?=engineConfig:|$)', message, re.DOTALL)
    ]


@contextmanager
def descriptor_set(functions: Any) -> Iterator[DescriptorSet]:
    descriptors = DescriptorSet(functions)
    try:
        yield descriptors
    finally:
        descriptors.destroy()


@lru_cache(maxsize=1)
def find_library() -> Any | None:
    """Load cuDNN into this process and return its functions. cuDNN may crash, so `cudnn_process` queries it in a
    separate process.
    """
    return load_library(library_paths())


def load_library(paths: Sequence[str]) -> Any | None:
    """Return cuDNN's functions from the first file in `paths` that can be queried, or None if there is no such file."""
    cublas = [path for path in paths if CUBLAS_LT in path]
    for path in paths:
        if path in cublas:
            continue
        try:
            functions = ctypes.CDLL(path)
            functions.cudnnGetVersion.restype = functions.cudnnGetCudartVersion.restype = ctypes.c_size_t
            cuda = functions.cudnnGetCudartVersion() // 1000
        except (OSError, AttributeError):
            continue
        if functions.cudnnGetVersion() >= OLDEST_VERSION and _loads_cublas(cuda, cublas):
            return functions
    return None


def _loads_cublas(cuda: int, paths: Sequence[str]) -> bool:
    # If cuBLASLt is missing, cuDNN aborts the process.
    name = f"{CUBLAS_LT}.{cuda}"
    for path in (*(path for path in paths if name in path), name):
        with suppress(OSError):
            ctypes.CDLL(path)
            return True
    return False
