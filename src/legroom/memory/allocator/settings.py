"""How the caching allocator is set up: what `PYTORCH_CUDA_ALLOC_CONF` and its newer name say, read as torch reads it.

Only the options that change where memory goes are kept; those about pinned host memory, locks and CUDA graphs are
checked and dropped. Torch's parser (c10/core/AllocatorConfig.cpp) is forgiving in places, and where it goes on with
a run, so does this one: `64MB` is 64, white space and a trailing comma are nothing. What torch refuses is refused
here too, with a sentence that says what to write instead.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

from legroom.errors import UsageError
from legroom.units import MiB

ENVIRONMENT_NAMES: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""In the order in which torch looks: the first that is set wins, even when it is empty. (Torch's documentation
recommends the last name; torch 2.13 still looks at it last.)"""

POWER_OF_TWO_INTERVALS: Final = 16
"""`roundup_power2_divisions` knows one figure for each doubling from 1 MiB to 64 GiB."""

FIRST_INTERVAL: Final = 20
"""The first of them begins at 1 MiB; smaller sizes count to it."""

SMALLEST_BLOCK: Final = 512
"""Every size is a multiple of it."""

SMALLEST_LARGE_SEGMENT: Final = 10 * MiB

_DROPPED_KEYS: Final = frozenset(
    {
        "graph_capture_record_stream_reuse",
        "pinned_free_catch_all",
        "pinned_max_cached_size_mb",
        "pinned_max_round_threshold_mb",
        "pinned_num_register_threads",
        "pinned_reserve_segment_size_mb",
        "pinned_use_background_threads",
        "pinned_use_cuda_host_register",
        "pinned_use_hip_host_register",
        "release_lock_on_cudamalloc",
        "release_lock_on_hipmalloc",
        "throw_on_cudamalloc_oom",
    }
)
_KEPT_KEYS: Final = (
    "backend",
    "expandable_segments",
    "garbage_collection_threshold",
    "large_segment_size_mb",
    "max_non_split_rounding_mb",
    "max_split_size_mb",
    "per_process_memory_fraction",
    "roundup_power2_divisions",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorSettings:
    """The options of the caching allocator; sizes in bytes. Without arguments: torch's defaults."""

    max_split_size: int | None = None
    """Blocks of this size and above are never split; None for no such size."""
    max_non_split_rounding: int = 20 * MiB
    """How much larger than the request an unsplittable block may be."""
    roundup_power2_divisions: tuple[int, ...] = (0,) * POWER_OF_TWO_INTERVALS
    """Into how many steps each doubling from 1 MiB to 64 GiB is divided when sizes are rounded up; 0 and 1: not."""
    garbage_collection_threshold: float = 0.0
    """Above this part of the limit, cached blocks that have not been used for long are given back; 0: never."""
    expandable_segments: bool = False
    large_segment_size: int = 20 * MiB
    """What is taken from the device for a request between 1 and 10 MiB; the page of a large expandable segment."""
    per_process_memory_fraction: float = 1.0
    backend: str = "native"
    """`cudaMallocAsync` leaves memory to CUDA's own pool, whose figures differ somewhat from a replay's."""
    ties: str = "age"
    """Of the version, not of the environment: among free blocks of equal size the one in the older segment is taken
    ("age", torch 2.13 on) or the one at the lower address ("address", before)."""

    def __post_init__(self) -> None:
        if self.ties not in ("age", "address"):
            raise UsageError(f"ties go by age or by address, not by '{self.ties}'")

    @classmethod
    def parse(cls, text: str, before: "AllocatorSettings | None" = None) -> "AllocatorSettings":
        """The settings that `text` stands for.

        `before`: those in force when a running program sets new ones. Torch then keeps the options of the segments
        and resets the others.
        """
        pairs = list(_pairs(_tokens(text)))
        start = before or cls()
        large_segment_size = start.large_segment_size
        for key, value in pairs:
            if key == "large_segment_size_mb":
                large_segment_size = _mebibytes(key, value, above=SMALLEST_LARGE_SEGMENT)
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key == "max_split_size_mb":
                found["max_split_size"] = _mebibytes(key, value, at_least=large_segment_size)
            elif key == "max_non_split_rounding_mb":
                found["max_non_split_rounding"] = _mebibytes(key, value, at_least=large_segment_size)
            elif key == "garbage_collection_threshold":
                found[key] = _fraction(key, value, "above 0 and below 1", lambda number: 0 < number < 1)
            elif key == "per_process_memory_fraction":
                found[key] = _fraction(key, value, "from 0 to 1", lambda number: 0 <= number <= 1)
            elif key == "roundup_power2_divisions":
                found[key] = _divisions(value)
            elif key == "expandable_segments":
                found[key] = _truth(key, value)
            elif key == "backend":
                found[key] = _backend(value)
        reset = replace(
            start,
            max_split_size=None,
            max_non_split_rounding=large_segment_size,
            roundup_power2_divisions=(0,) * POWER_OF_TWO_INTERVALS,
            garbage_collection_threshold=0.0,
            large_segment_size=large_segment_size,
        )
        return replace(reset, **found)

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str], torch_version: str | None = None
    ) -> "AllocatorSettings":
        """The settings of a process with this environment; its error names the variable at fault."""
        version = cls(ties=ties_of(torch_version)) if torch_version else cls()
        for name in ENVIRONMENT_NAMES:
            if name in environ:
                try:
                    return cls.parse(environ[name], version)
                except UsageError as error:
                    raise UsageError(f"{name}: {error}") from None
        return version

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "AllocatorSettings":
        """What `as_dict` wrote; names that this version does not know are left aside."""
        known = {field.name for field in fields(cls)} & data.keys()
        settings = cls(**{name: data[name] for name in known})
        return replace(settings, roundup_power2_divisions=tuple(settings.roundup_power2_divisions))

    def rounded(self, size: int) -> int:
        """What a request is rounded up to: a multiple of 512 bytes, or a step of the doubling that it lies in."""
        if size < SMALLEST_BLOCK:
            return SMALLEST_BLOCK
        doubling = size.bit_length() - 1
        interval = min(max(doubling - FIRST_INTERVAL, 0), POWER_OF_TWO_INTERVALS - 1)
        divisions = self.roundup_power2_divisions[interval]
        if divisions > 1 and size > SMALLEST_BLOCK * divisions:
            step = (1 << doubling) // divisions
            return (size + step - 1) & -step
        return (size + SMALLEST_BLOCK - 1) & -SMALLEST_BLOCK

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for a capture's header."""
        return asdict(self) | {"roundup_power2_divisions": list(self.roundup_power2_divisions)}


def ties_of(torch_version: str) -> str:
    """How this version of torch chooses among free blocks of equal size.

    >>> ties_of("2.12.1+cu130"), ties_of("2.13.0")
    ('address', 'age')
    """
    numbers = re.match(r"([0-9]+)\.([0-9]+)", torch_version)
    if numbers is None:
        return "age"
    return "age" if (int(numbers[1]), int(numbers[2])) >= (2, 13) else "address"


# ---------------------------------------------------------------- reading


def _tokens(text: str) -> list[str]:
    """`a:1,b:[2:3]` as a, :, 1, `,`, b, :, [, 2, :, 3, ]: white space counts nowhere, not even inside a word."""
    return re.findall(r"[,:\[\]]|[^,:\[\]]+", re.sub(r"\s+", "", text))


def _pairs(tokens: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Each key with the tokens of its value."""
    position = 0
    while position < len(tokens):
        key = tokens[position]
        if key not in _KEPT_KEYS and key not in _DROPPED_KEYS:
            raise UsageError(
                f"'{key}' is no option of the CUDA allocator: write option:value pairs with commas between them, "
                f"of {', '.join(_KEPT_KEYS)}"
            )
        if tokens[position + 1 : position + 2] != [":"] or position + 2 >= len(tokens):
            raise UsageError(f"{key} has no value: write {key}:VALUE")
        start = position + 2
        end = start + 1
        if tokens[start] == "[":
            if "]" not in tokens[start:]:
                raise UsageError(f"{key}: the list is not closed with a ']'")
            end = tokens.index("]", start) + 1
        if tokens[end : end + 1] not in ([], [","]):
            raise UsageError(
                f"'{tokens[end]}' after {key}:{''.join(tokens[start:end])}: a comma belongs there"
            )
        yield key, tokens[start:end]
        position = end + 1


def _number(key: str, token: str) -> int:
    """The whole number with which `token` begins."""
    match = re.match(r"\+?[0-9]+", token)
    if match is None:
        raise UsageError(f"{key}: '{token}' is no whole number")
    return int(match.group())


def _mebibytes(key: str, value: list[str], at_least: int = 0, above: int = 0) -> int:
    size = _number(key, value[0]) * MiB
    if size < at_least:
        raise UsageError(f"{key}:{value[0]} is too small: it must be at least {at_least // MiB}")
    if above and size <= above:
        raise UsageError(f"{key}:{value[0]} is too small: it must be above {above // MiB}")
    return size


def _fraction(key: str, value: list[str], range_in_words: str, in_range: Callable[[float], bool]) -> float:
    match = re.match(r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?", value[0], re.IGNORECASE)
    if match is None or not in_range(float(match.group())):
        raise UsageError(f"{key}:{value[0]} is out of range: write a number {range_in_words}")
    return float(match.group())


def _truth(key: str, value: list[str]) -> bool:
    if value[0] not in ("True", "False"):
        raise UsageError(
            f"{key}:{value[0]} is neither True nor False: write one of them, with the capital letter"
        )
    return value[0] == "True"


def _backend(value: list[str]) -> str:
    if value[0] not in ("native", "cudaMallocAsync"):
        raise UsageError(f"backend:{value[0]} is unknown: write native or cudaMallocAsync")
    return value[0]


def _divisions(value: list[str]) -> tuple[int, ...]:
    """One figure for all sizes, or a list such as [256:1,512:2,>:8]: up to 256 MiB 1, from 512 MiB 2, above 8."""
    key = "roundup_power2_divisions"
    if value[0] != "[":
        return (_power_of_two(key, value[0]),) * POWER_OF_TWO_INTERVALS
    divisions = [0] * POWER_OF_TWO_INTERVALS
    last = 0
    is_first = True
    for entry in "".join(value[1:-1]).split(","):
        if not entry:
            continue
        boundary, colon, figure = entry.partition(":")
        if not colon or not figure:
            raise UsageError(f"{key}: '{entry}' is no entry of its list: write it like 256:4 or >:8")
        count = 0 if re.match(r"\+?0+(?![0-9])", figure) else _power_of_two(key, figure)
        if boundary == ">":
            divisions[last + 1 :] = [count] * len(divisions[last + 1 :])
            continue
        last = min(_power_of_two(key, boundary).bit_length() - 1, POWER_OF_TWO_INTERVALS - 1)
        if is_first:
            divisions[:last] = [count] * last
            is_first = False
        divisions[last] = count
    return tuple(divisions)


def _power_of_two(key: str, token: str) -> int:
    number = _number(key, token)
    if number == 0 or number & (number - 1):
        raise UsageError(f"{key}: {token} is no power of two")
    return number
