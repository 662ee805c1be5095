"""cuDNN's library as far as it is asked about convolutions: finding it, and making, filling and reading its descriptors.

Everything in cuDNN's graph API is an opaque descriptor with numbered attributes; the numbers are those of cudnn_graph.h. A `Desk`
holds the descriptors of one question and throws them away with it. Every call is checked: what cuDNN does not accept is `RefusedError`, never
a wrong number.
"""

import ctypes
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

from legroom.observe.cuda_rules.convolution.cudnn_location import CUBLAS_LT, library_paths

OLDEST = 90_800
"""The first version that can be queried about a GPU that is not present (9.8)."""


class Kind(IntEnum):
    """Of descriptors."""

    CONVOLUTION = 1
    ENGINE = 2
    CONFIGURATION = 3
    HEURISTIC = 4
    PLAN = 5
    KNOB = 7
    FORWARD = 10
    WEIGHT_GRADIENT = 11
    INPUT_GRADIENT = 12
    GRAPH = 15
    TENSOR = 17
    DEVICE = 38


class Attribute(IntEnum):
    """What a descriptor is made of."""

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


class Type(IntEnum):
    """Of attributes."""

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
    """Settings of kernels that matter here."""

    COPIES = 0
    """Of the weights' gradient."""
    TILE = 2
    BUFFERS = 12
    """Copies of what is summed up, in tiles."""
    NO_WORKSPACE = 25
    CLUSTER_ROWS = 27
    CLUSTER_COLUMNS = 28


class RefusedError(Exception):
    """cuDNN did not accept what it was given, and why."""


Setting = tuple[Type, Any]
"""An attribute's type, and its values as C has them."""


def numbers(*values: int) -> Setting:
    return Type.INT64, (ctypes.c_int64 * len(values))(*values)


def choice(type: Type, value: int) -> Setting:
    """One of an enumeration."""
    return type, (ctypes.c_int * 1)(value)


def factor(value: float) -> Setting:
    return Type.FLOAT, (ctypes.c_float * 1)(value)


def text(value: str) -> Setting:
    encoded = value.encode()
    return Type.CHARACTER, (ctypes.c_char * len(encoded)).from_buffer_copy(encoded)


def these(*descriptors: int) -> Setting:
    return Type.DESCRIPTOR, (ctypes.c_void_p * len(descriptors))(*descriptors)


class Desk:
    """The descriptors of one question."""

    def __init__(self, functions: Any) -> None:
        self._functions = functions
        self._made: list[int] = []

    def make(self, kind: int, settings: Mapping[int, Setting]) -> int:
        """A finished descriptor with these attributes."""
        made = self._new(kind)
        for name, (type, values) in settings.items():
            status = self._functions.cudnnBackendSetAttribute(
                ctypes.c_void_p(made), int(name), int(type), ctypes.c_int64(len(values)), values
            )
            self._check(status, f"attribute {name}")
        self._check(self._functions.cudnnBackendFinalize(ctypes.c_void_p(made)), f"descriptor {kind}")
        return made

    def descriptors(self, of: int, name: Attribute, kind: Kind, most: int) -> list[int]:
        """The first few that an attribute lists."""
        found = [self._new(kind) for _ in range(most)]
        room = (ctypes.c_void_p * most)(*found)
        return found[: min(most, self._read(of, name, Type.DESCRIPTOR, room))]

    def choices(self, of: int, name: Attribute, type: Type, most: int = 32) -> list[int]:
        """The members of an enumeration that an attribute lists."""
        room = (ctypes.c_int * most)()
        return list(room[: self._read(of, name, type, room)])

    def number(self, of: int, name: Attribute) -> int:
        room = (ctypes.c_int64 * 1)()
        self._read(of, name, Type.INT64, room)
        return int(room[0])

    def string(self, of: int, name: Attribute, most: int = 65_536) -> str:
        room = (ctypes.c_char * most)()
        return room.raw[: self._read(of, name, Type.CHARACTER, room)].rstrip(b"\0").decode()

    def clear(self) -> None:
        while self._made:
            self._functions.cudnnBackendDestroyDescriptor(ctypes.c_void_p(self._made.pop()))

    def _new(self, kind: int) -> int:
        made = ctypes.c_void_p()
        self._check(
            self._functions.cudnnBackendCreateDescriptor(int(kind), ctypes.byref(made)), f"descriptor {kind}"
        )
        self._made.append(made.value or 0)
        return made.value or 0

    def _read(self, of: int, name: Attribute, type: Type, room: Any) -> int:
        """Fills `room`, and says how many values there are."""
        count = ctypes.c_int64()
        status = self._functions.cudnnBackendGetAttribute(
            ctypes.c_void_p(of), int(name), int(type), ctypes.c_int64(len(room)), ctypes.byref(count), room
        )
        self._check(status, f"attribute {name}")
        return count.value

    def _check(self, status: int, what: str) -> None:
        if status:
            said = ctypes.create_string_buffer(1000)
            self._functions.cudnnGetLastErrorString(said, ctypes.c_size_t(len(said)))
            raise RefusedError(f"{what}: status {status}, {said.value.decode(errors='replace')}")


class Refusal(NamedTuple):
    """A kernel that cuDNN put into its list and then passed over."""

    engine: int
    """cuDNN's number for it."""
    words: str
    """Why, as its log says."""


@contextmanager
def overhear(functions: Any) -> Iterator[list[str]]:
    """What cuDNN writes into its log meanwhile: one text for each call, complete when this ends."""
    heard: list[str] = []

    def write(_severity: int, _data: Any, _call: Any, message: int) -> None:
        lines = []
        while line := ctypes.string_at(message):  # each line ends with a zero, the last one with two
            lines.append(line.decode(errors="replace"))
            message += len(line) + 1
        heard.append("\n".join(lines))

    listener = _LISTENER(write)
    before = ctypes.c_uint(), ctypes.c_void_p(), ctypes.c_void_p()
    functions.cudnnGetCallback(*map(ctypes.byref, before))
    functions.cudnnSetCallback(ctypes.c_uint(_INFORMATION), None, listener)
    try:
        yield heard
    finally:
        functions.cudnnSetCallback(*before)


_LISTENER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_INFORMATION = 1 << 3


def refusals(heard: list[str]) -> list[Refusal]:
    """The kernels that were passed over, in cuDNN's order."""
    return [
        Refusal(int(found[1]), found[2])
        for text in heard
        if "support_checks" in text
        for found in re.finditer(r'"engineId":(\d+)(.*?)(?=engineConfig:|$)', text, re.DOTALL)
    ]


@contextmanager
def desk_of(functions: Any) -> Iterator[Desk]:
    desk = Desk(functions)
    try:
        yield desk
    finally:
        desk.clear()


@lru_cache(maxsize=1)
def find_library() -> Any | None:
    """cuDNN's functions, loaded into this process. `cudnn_process` queries cuDNN without that risk."""
    return load_library(library_paths())


def load_library(paths: Sequence[str]) -> Any | None:
    """cuDNN's functions, from the first of these files that can be queried; None if there is none."""
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
        if functions.cudnnGetVersion() >= OLDEST and _loads_cublas(cuda, cublas):
            return functions
    return None


def _loads_cublas(cuda: int, paths: Sequence[str]) -> bool:
    """Whether cuBLASLt can be loaded. cuDNN needs it, and aborts the process if it is missing."""
    name = f"{CUBLAS_LT}.{cuda}"
    for path in (*(path for path in paths if name in path), name):
        with suppress(OSError):
            ctypes.CDLL(path)
            return True
    return False
