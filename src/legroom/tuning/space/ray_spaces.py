"""Reads a Ray Tune space (`tune.loguniform`, `tune.choice`, `tune.grid_search`, ...) as a `Space`."""

from collections.abc import Mapping
from typing import Any

from ray.tune.search import sample

from legroom.errors import UsageError
from legroom.tuning.space.domains import AnyDomain, Categorical, FloatRange, IntRange, Sampled, nested_error
from legroom.tuning.space.space import Space, read_space

MOST_STEPS = 1000
"""The maximum number of values of an integer range with steps, because such a range is converted to a list of
choices."""


def is_ray_space(written: Any) -> bool:
    return isinstance(written, Mapping) and any(_varies(value) for value in written.values())


def is_grid(written: Mapping[str, Any]) -> bool:
    varying = [value for value in written.values() if _varies(value)]
    return bool(varying) and all(_grid(value) is not None for value in varying)


def space_of(written: Mapping[str, Any]) -> Space:
    if any(_grid(value) is not None for value in written.values()) and not is_grid(written):
        raise UsageError(
            "The space mixes `grid_search` with ranges. Use `tune.grid_search` for all parameters, or replace it with `tune.choice`."
        )
    return read_space({name: _read(name, value) for name, value in written.items()})


def _grid(value: Any) -> list[Any] | None:
    if isinstance(value, Mapping) and set(value) == {"grid_search"}:
        return list(value["grid_search"])
    return None


def _varies(value: Any) -> bool:
    return isinstance(value, sample.Domain) or _grid(value) is not None


def _read(name: str, value: Any) -> Any:
    grid = _grid(value)
    if grid is not None:
        return grid
    if isinstance(value, Mapping):
        raise nested_error(name, value)
    if not isinstance(value, sample.Domain):
        return value
    if isinstance(value, sample.Categorical):
        return list(value.categories)
    if isinstance(value, sample.Float | sample.Integer):
        return _range(name, value)
    return Sampled(lambda config: value.sample(config=config))  # sample_from


def _range(name: str, domain: Any) -> AnyDomain:
    sampler, step = domain.get_sampler(), None
    if isinstance(sampler, sample.Quantized):
        quantized: Any = sampler
        sampler, step = quantized.get_sampler(), quantized.q
    if isinstance(sampler, sample.Normal):
        return Sampled(lambda config: domain.sample())
    log = isinstance(sampler, sample.LogUniform)
    if isinstance(domain, sample.Float):
        if step is not None and log:
            raise UsageError(f"Parameter `{name}`: logarithmic ranges do not support a step. Omit the step.")
        return FloatRange(float(domain.lower), float(domain.upper), log, step)
    if step is None or step == 1:
        # Ray excludes the upper end.
        return IntRange(int(domain.lower), int(domain.upper) - (step is None), log)
    values = range(int(domain.lower), int(domain.upper) + 1, int(step))
    if len(values) > MOST_STEPS:
        raise UsageError(
            f"Parameter `{name}` has too many steps ({len(values):,}). Increase or remove `step`."
        )
    return Categorical(tuple(values))
