"""The domain of one parameter: a range or a list of choices.

Every domain can be sampled (`draw`) and listed for a grid (`grid`, which returns None for infinitely many values). The
values of a range have an order and a distance (`is_range`). A range can be mapped to the interval from 0 to 1 and back
(`to_unit`, `from_unit`), so a numeric searcher treats all ranges alike. `draw` consumes random numbers in the same way
as Ray Tune's domains, so it returns the same values.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from legroom.errors import UsageError

if TYPE_CHECKING:
    from numpy.random import Generator


@dataclass(frozen=True, slots=True)
class FloatRange:
    """A range from `low` to `high`, both included. With `log`, values are sampled uniformly on a logarithmic scale.
    With `step`, the values are `low`, `low + step`, `low + 2 * step`, and so on. `points` is the number of grid
    points."""

    low: float
    high: float
    log: bool = False
    step: float | None = None
    points: int | None = None

    is_range = True

    def draw(self, rng: "Generator") -> float:
        return self.from_unit(rng.random())

    def from_unit(self, share: float) -> float:
        share = min(1.0, max(0.0, share))
        if self.log:
            value = math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low + share * (self.high - self.low)
        if self.step is not None:
            value = self.low + round((value - self.low) / self.step) * self.step
            value = float(f"{value:.12g}")  # 0.3 instead of 0.30000000000000004
        return min(self.high, max(self.low, value))

    def to_unit(self, value: Any) -> float:
        if self.high == self.low:
            return 0.0
        if self.log:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return float((value - self.low) / (self.high - self.low))

    def contains(self, value: Any) -> bool:
        return _is_number(value) and self.low <= value <= self.high

    def grid(self) -> list[float] | None:
        if self.points is not None:
            return [self.from_unit(index / max(1, self.points - 1)) for index in range(self.points)]
        if self.step is not None:
            count = int((self.high - self.low) / self.step + 1e-9) + 1
            return [float(f"{self.low + index * self.step:.12g}") for index in range(count)]
        return None


@dataclass(frozen=True, slots=True)
class IntRange:
    """Integers from `low` to `high`, both included. With `log`, values are sampled uniformly on a logarithmic scale.
    `points` is the number of grid points."""

    low: int
    high: int
    log: bool = False
    points: int | None = None

    is_range = True

    def draw(self, rng: "Generator") -> int:
        if self.log:
            return min(self.high, int(math.exp(rng.uniform(math.log(self.low), math.log(self.high + 1)))))
        return int(rng.integers(self.low, self.high + 1))

    def from_unit(self, share: float) -> int:
        share = min(1.0, max(0.0, share))
        low, high = self.low - 0.5, self.high + 0.5  # so that both ends are as likely as other values
        if self.log:
            value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        else:
            value = low + share * (high - low)
        return min(self.high, max(self.low, round(value)))

    def to_unit(self, value: Any) -> float:
        low, high = self.low - 0.5, self.high + 0.5
        if self.log:
            return (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
        return float((value - low) / (high - low))

    def contains(self, value: Any) -> bool:
        return _is_number(value) and self.low <= value <= self.high and value == int(value)

    def grid(self) -> list[int]:
        if self.points is not None:
            middles = [self.from_unit((index + 0.5) / self.points) for index in range(self.points)]
            return sorted(set(middles))
        return list(range(self.low, self.high + 1))


@dataclass(frozen=True, slots=True)
class PowerRange:
    """Powers of two, from 2**`low` to 2**`high`, both included."""

    low: int
    high: int

    is_range = True

    @property
    def exponents(self) -> IntRange:
        return IntRange(self.low, self.high)

    def draw(self, rng: "Generator") -> int:
        return int(2 ** self.exponents.draw(rng))

    def from_unit(self, share: float) -> int:
        return int(2 ** self.exponents.from_unit(share))

    def to_unit(self, value: Any) -> float:
        return self.exponents.to_unit(math.log2(value))

    def contains(self, value: Any) -> bool:
        return value in self.grid()

    def grid(self) -> list[int]:
        return [2**exponent for exponent in range(self.low, self.high + 1)]


@dataclass(frozen=True, slots=True)
class Categorical:
    """A choice among several values that have no order."""

    options: tuple[Any, ...]

    is_range = False

    def draw(self, rng: "Generator") -> Any:
        return self.options[int(rng.integers(len(self.options)))]

    def contains(self, value: Any) -> bool:
        return value in self.options

    def grid(self) -> list[Any]:
        return list(self.options)


@dataclass(frozen=True, slots=True)
class Sampled:
    """Values that a function returns, as in Ray Tune's `sample_from`. Only random search supports these functions."""

    function: Callable[..., Any] | None = field(default=None, compare=False)
    """A function that returns a value, or None in a study that was loaded from disk. The function may take the values
    of the preceding parameters as its argument.
    """

    is_range = False

    def draw(self, rng: "Generator", config: Mapping[str, Any] | None = None) -> Any:
        """Call the function with seeded generators of NumPy and `random`, so that the same seed gives the same values."""
        import numpy

        assert self.function is not None
        seed, state, numpy_state = int(rng.integers(1 << 32)), random.getstate(), numpy.random.get_state()
        random.seed(seed)
        numpy.random.seed(seed)
        try:
            value = self.function(dict(config or {}))
        finally:
            random.setstate(state)
            numpy.random.set_state(numpy_state)
        return value.item() if isinstance(value, numpy.generic) else value

    def contains(self, value: Any) -> bool:
        return True

    def grid(self) -> None:
        return None


AnyDomain = FloatRange | IntRange | PowerRange | Categorical | Sampled


def nested_error(name: str, inner: Mapping[str, Any]) -> UsageError:
    first = next(iter(inner), "lr")
    return UsageError(
        f"Parameter `{name}` is nested. Use a flat space with one name per parameter, for example `{name}_{first}`, and "
        f"build the dict in the training function: `{{'{first}': config['{name}_{first}']}}`."
    )


def read_domain(name: str, written: Any) -> AnyDomain | None:
    """Read a domain that the user wrote in TOML or Python. Return None for a plain value, which is the same in every
    trial.

    `[2, 4, 8]` and `{choice = [...]}` mean one of these values. `{uniform = [0, 1]}`, `{log = [1e-4, 1e-1]}`, `{int =
    [1, 8]}` and `{int_log = [16, 1024]}` mean a range with both bounds included. `{int_log2 = [2, 9]}` means 4, 8, 16
    and so on up to 512. A range can be used in a grid if it has a `step` or a number of `points`.
    """
    if isinstance(written, AnyDomain):
        return written
    if isinstance(written, list | tuple):
        return _choice(name, written)
    if not isinstance(written, dict):
        return None
    if set(written) == {"sample_from"}:
        return Sampled(written["sample_from"] if callable(written["sample_from"]) else None)
    kinds = [kind for kind in written if kind in KINDS]
    inner = {key: value for key, value in written.items() if key not in ("step", "points", "when")}
    if not kinds and inner and not any(isinstance(value, list | tuple) for value in inner.values()):
        raise nested_error(name, inner)
    if len(kinds) != 1:
        raise UsageError(
            f"Parameter `{name}`: use exactly one of {', '.join(f'`{kind}`' for kind in KINDS)}, for example `{name} = {{log = [1e-4, 1e-1]}}`."
        )
    kind = kinds[0]
    unknown = sorted(set(written) - {kind, "step", "points", "when"})
    if unknown:
        raise UsageError(
            f"Parameter `{name}`: unknown key `{unknown[0]}`. In addition to `{kind}`, only the keys `step`, `points` and `when` are allowed."
        )
    if kind == "choice":
        return _choice(name, written[kind])
    return _range(name, kind, written[kind], written.get("step"), written.get("points"))


def domain_as_dict(domain: AnyDomain) -> dict[str, Any]:
    if isinstance(domain, Categorical):
        return {"choice": list(domain.options)}
    if isinstance(domain, Sampled):
        return {"sample_from": "function"}
    if isinstance(domain, PowerRange):
        return {"int_log2": [domain.low, domain.high]}
    if isinstance(domain, IntRange):
        kind = "int_log" if domain.log else "int"
    else:
        kind = "log" if domain.log else "uniform"
    further = {"step": getattr(domain, "step", None), "points": domain.points}
    content: dict[str, Any] = {kind: [domain.low, domain.high]}
    return content | {name: value for name, value in further.items() if value is not None}


KINDS = ("uniform", "log", "int", "int_log", "int_log2", "choice")


def _choice(name: str, options: Sequence[Any]) -> Categorical:
    if isinstance(options, str) or not isinstance(options, list | tuple) or not options:
        raise UsageError(
            f"Parameter `{name}`: a choice needs a list of options, for example `{name} = [2, 4, 8]`."
        )
    plain = (bool, int, float, str, type(None))
    if not all(isinstance(option, plain) for option in options):
        raise UsageError(
            f"Parameter `{name}`: options must be numbers, strings or booleans. For other objects, use names "
            "as options, and look up the objects by name in the training function."
        )
    if len(set(options)) != len(options):
        raise UsageError(f"Parameter `{name}` lists the same value more than once.")
    return Categorical(tuple(options))


def _range(name: str, kind: str, ends: Any, step: Any, points: Any) -> AnyDomain:
    if not isinstance(ends, list | tuple) or len(ends) != 2 or not all(map(_is_number, ends)):
        raise UsageError(
            f"Parameter `{name}`: {kind} needs a lower and an upper bound, for example `{{{kind} = {_EXAMPLES[kind]}}}`."
        )
    low, high = ends
    if low > high:
        raise UsageError(
            f"Parameter `{name}`: the lower bound of {kind} = [{low}, {high}] is larger than the upper bound. Use [{high}, {low}]."
        )
    if kind in ("log", "int_log") and low <= 0:
        raise UsageError(
            f"Parameter `{name}`: the lower bound of `{kind}` must be greater than 0, not {low}. Increase the lower bound, or use "
            f"`{'uniform' if kind == 'log' else 'int'}`."
        )
    if step is not None and (kind != "uniform" or not _is_number(step) or step <= 0):
        raise UsageError(
            f"Parameter `{name}`: `step` must be a number greater than 0, and requires `uniform`."
        )
    if points is not None and (not isinstance(points, int) or points < 1 or kind == "int_log2"):
        raise UsageError(
            f"Parameter `{name}`: `points` must be an integer of 1 or more, and is not allowed with `int_log2`."
        )
    if kind in ("uniform", "log"):
        return FloatRange(float(low), float(high), kind == "log", step, points)
    if low != int(low) or high != int(high):
        raise UsageError(f"Parameter `{name}`: {kind} needs integer bounds, not [{low}, {high}].")
    if kind == "int_log2":
        if low < 0 or high > 62:
            raise UsageError(
                f"Parameter `{name}`: the bounds of `int_log2` are exponents from 0 to 62. For example, [2, 9] means 4 to 512."
            )
        return PowerRange(int(low), int(high))
    return IntRange(int(low), int(high), kind == "int_log", points)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_EXAMPLES = {
    "uniform": "[0.0, 1.0]",
    "log": "[1e-4, 1e-1]",
    "int": "[1, 8]",
    "int_log": "[16, 1024]",
    "int_log2": "[2, 9]",
}
