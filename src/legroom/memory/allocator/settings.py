"""Parses `PYTORCH_CUDA_ALLOC_CONF` and its newer names in the same way as torch.

Only the options that affect memory are stored. Options for pinned host memory, locks and CUDA graphs are checked and
ignored. PyTorch's parser (c10/core/AllocatorConfig.cpp) tolerates some irregular values, and so does this module. For
example, `64MB` is read as 64, and white space and a trailing comma are ignored. If torch rejects a value, this module
also rejects it, with a message that shows the correct form.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

from legroom.errors import UsageError
from legroom.units import MiB

ENVIRONMENT_NAMES: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""The environment variables in order of precedence.

The first variable that is set is used, even if it is empty. PyTorch's documentation recommends the last variable,
although it has the lowest precedence in torch 2.13.
"""

POWER_OF_TWO_INTERVALS: Final = 16
"""`roundup_power2_divisions` has one value for each power of two from 1 MiB to 64 GiB."""

FIRST_INTERVAL: Final = 20
"""The first interval starts at 1 MiB (2 ** 20) and includes smaller sizes."""

MIN_BLOCK_SIZE: Final = 512
"""Every block size is a multiple of this number of bytes."""

MIN_LARGE_ALLOC: Final = 10 * MiB

LARGE_SEGMENT: Final = 20 * MiB
"""By default, torch reserves memory for requests from 1 to 10 MiB in segments of this size."""

_IGNORED_KEYS: Final = frozenset(
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
_KEYS: Final = (
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
    """The options of the caching allocator, with torch's defaults. All sizes are in bytes."""

    max_split_size: int | None = None
    """Blocks of this size or larger are never split. With None, every block can be split."""
    max_non_split_rounding: int = 20 * MiB
    """A request of at least `max_split_size` uses a cached block only if the block exceeds the request by less than
    this many bytes.
    """
    roundup_power2_divisions: tuple[int, ...] = (0,) * POWER_OF_TWO_INTERVALS
    """The number of divisions for rounding, for each power of two from 1 MiB to 64 GiB.

    A value of 0 or 1 disables this kind of rounding.
    """
    garbage_collection_threshold: float = 0.0
    """Above this fraction of the limit, cached blocks that were not used recently are released. A value of 0 disables
    this behavior.
    """
    expandable_segments: bool = False
    large_segment_size: int = LARGE_SEGMENT
    """The segment size for requests from 1 to 10 MiB, and the page size of large expandable segments."""
    per_process_memory_fraction: float = 1.0
    backend: str = "native"
    """The allocator backend. `cudaMallocAsync` uses CUDA's own memory pool, which this simulation does not model."""
    ties: str = "age"
    """The rule that selects one of several free blocks of equal size.

    "age" is the rule since torch 2.13: it selects the block of the older segment. "address" is the rule of earlier
    versions: it selects the block at the lower address.
    """

    def __post_init__(self) -> None:
        if self.ties not in ("age", "address"):
            raise UsageError(f"`ties` must be `age` or `address`, not `{self.ties}`.")

    @classmethod
    def parse(cls, text: str, before: "AllocatorSettings | None" = None) -> "AllocatorSettings":
        """Parse the settings.

        If a running program changes its settings, `before` contains the previous settings. When settings change,
        torch keeps the segment options and resets all other options.
        """
        pairs = list(_pairs(_tokens(text)))
        start = before or cls()
        large_segment_size = start.large_segment_size
        for key, value in pairs:
            if key == "large_segment_size_mb":
                large_segment_size = _mib(key, value, above=MIN_LARGE_ALLOC)
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key == "max_split_size_mb":
                found["max_split_size"] = _mib(key, value, at_least=large_segment_size)
            elif key == "max_non_split_rounding_mb":
                found["max_non_split_rounding"] = _mib(key, value, at_least=large_segment_size)
            elif key == "garbage_collection_threshold":
                found[key] = _fraction(
                    key, value, "greater than 0 and less than 1", lambda number: 0 < number < 1
                )
            elif key == "per_process_memory_fraction":
                found[key] = _fraction(key, value, "from 0 to 1", lambda number: 0 <= number <= 1)
            elif key == "roundup_power2_divisions":
                found[key] = _divisions(value)
            elif key == "expandable_segments":
                found[key] = _boolean(key, value)
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
        known = {field.name for field in fields(cls)} & data.keys()
        settings = cls(**{name: data[name] for name in known})
        return replace(settings, roundup_power2_divisions=tuple(settings.roundup_power2_divisions))

    def rounded(self, size: int) -> int:
        """Return the rounded size of a request: a multiple of 512 bytes, or of a fraction of a power of two."""
        if size < MIN_BLOCK_SIZE:
            return MIN_BLOCK_SIZE
        doubling = size.bit_length() - 1
        interval = min(max(doubling - FIRST_INTERVAL, 0), POWER_OF_TWO_INTERVALS - 1)
        divisions = self.roundup_power2_divisions[interval]
        if divisions > 1 and size > MIN_BLOCK_SIZE * divisions:
            step = (1 << doubling) // divisions
            return (size + step - 1) & -step
        return (size + MIN_BLOCK_SIZE - 1) & -MIN_BLOCK_SIZE

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"roundup_power2_divisions": list(self.roundup_power2_divisions)}


def ties_of(torch_version: str) -> str:
    """Return the rule by which a torch version selects among free blocks of equal size.

    >>> ties_of("2.12.1+cu130"), ties_of("2.13.0")
    ('address', 'age')
    """
    numbers = re.match(r"([0-9]+)\.([0-9]+)", torch_version)
    if numbers is None:
        return "age"
    return "age" if (int(numbers[1]), int(numbers[2])) >= (2, 13) else "address"


# --- parsing


def _tokens(text: str) -> list[str]:
    """Split a string such as `a:1,b:[2:3]` into words and the characters `:`, `,`, `[` and `]`, without white space."""
    return re.findall(r"[,:\[\]]|[^,:\[\]]+", re.sub(r"\s+", "", text))


def _pairs(tokens: list[str]) -> Iterator[tuple[str, list[str]]]:
    position = 0
    while position < len(tokens):
        key = tokens[position]
        if key not in _KEYS and key not in _IGNORED_KEYS:
            raise UsageError(
                f"`{key}` is not a CUDA allocator option. Specify `option:value` pairs separated by commas. "
                f"Options: {', '.join(_KEYS)}."
            )
        if tokens[position + 1 : position + 2] != [":"] or position + 2 >= len(tokens):
            raise UsageError(f"`{key}` has no value. Use `{key}:VALUE`.")
        start = position + 2
        end = start + 1
        if tokens[start] == "[":
            if "]" not in tokens[start:]:
                raise UsageError(f"`{key}`: the list has no closing `]`.")
            end = tokens.index("]", start) + 1
        if tokens[end : end + 1] not in ([], [","]):
            raise UsageError(
                f"`{tokens[end]}` follows `{key}:{''.join(tokens[start:end])}` without a comma. Separate the options with commas."
            )
        yield key, tokens[start:end]
        position = end + 1


def _number(key: str, token: str) -> int:
    match = re.match(r"\+?[0-9]+", token)
    if match is None:
        raise UsageError(f"`{key}`: `{token}` is not an integer.")
    return int(match.group())


def _mib(key: str, value: list[str], at_least: int = 0, above: int = 0) -> int:
    size = _number(key, value[0]) * MiB
    if size < at_least:
        raise UsageError(f"`{key}:{value[0]}` is too small. The minimum is {at_least // MiB}.")
    if above and size <= above:
        raise UsageError(f"`{key}:{value[0]}` is too small. The value must be greater than {above // MiB}.")
    return size


def _fraction(key: str, value: list[str], range_text: str, in_range: Callable[[float], bool]) -> float:
    match = re.match(r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?", value[0], re.IGNORECASE)
    if match is None or not in_range(float(match.group())):
        raise UsageError(f"`{key}:{value[0]}` is out of range. Use a number {range_text}.")
    return float(match.group())


def _boolean(key: str, value: list[str]) -> bool:
    if value[0] not in ("True", "False"):
        raise UsageError(f"`{key}:{value[0]}` is not a boolean. Use `True` or `False`.")
    return value[0] == "True"


def _backend(value: list[str]) -> str:
    if value[0] not in ("native", "cudaMallocAsync"):
        raise UsageError(f"`backend:{value[0]}` is unknown. Use `native` or `cudaMallocAsync`.")
    return value[0]


def _divisions(value: list[str]) -> tuple[int, ...]:
    """Parse one value for all sizes, or a list.

    For example, [256:1,512:2,>:8] means 1 division below 512 MiB, 2 divisions from 512 MiB to 1 GiB, and 8 divisions
    above.
    """
    key = "roundup_power2_divisions"
    if value[0] != "[":
        return (_power_of_two(key, value[0]),) * POWER_OF_TWO_INTERVALS
    divisions = [0] * POWER_OF_TWO_INTERVALS
    last = 0
    is_first = True
    for entry in "".join(value[1:-1]).split(","):
        if not entry:
            continue
        boundary, colon, divisor = entry.partition(":")
        if not colon or not divisor:
            raise UsageError(f"`{key}`: `{entry}` is not a valid entry. Examples: `256:4`, `>:8`.")
        count = 0 if re.match(r"\+?0+(?![0-9])", divisor) else _power_of_two(key, divisor)
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
        raise UsageError(f"`{key}`: `{token}` is not a power of two.")
    return number
