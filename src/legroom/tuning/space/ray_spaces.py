"""A space as Ray Tune writes it (`tune.loguniform`, `tune.choice`, `tune.grid_search`, ...) read as one of ours."""

from collections.abc import Mapping
from typing import Any

from ray.tune.search import sample

from legroom.errors import UsageError
from legroom.tuning.space.domains import AnyDomain, Choice, FloatRange, IntRange
from legroom.tuning.space.space import Space, read_space

MOST_STEPS = 1000
"""Values of a stepped range of whole numbers that become a list of choices."""


def is_ray_space(written: Any) -> bool:
    """Whether a dict holds any domain of Ray's."""
    return isinstance(written, Mapping) and any(_varies(value) for value in written.values())


def is_grid(written: Mapping[str, Any]) -> bool:
    """Whether all that varies is a `grid_search`: then Ray would try every combination."""
    varying = [value for value in written.values() if _varies(value)]
    return bool(varying) and all(_grid(value) is not None for value in varying)


def space_of(written: Mapping[str, Any]) -> Space:
    """The same space; says which parameter cannot be searched, and how to write it instead."""
    if any(_grid(value) is not None for value in written.values()) and not is_grid(written):
        raise UsageError(
            "the space has grid_search beside ranges: use lists for all (a grid), or tune.choice instead of tune.grid_search"
        )
    return read_space({name: _read(name, value) for name, value in written.items()})


def _grid(value: Any) -> list[Any] | None:
    """The values of `tune.grid_search([...])`, which Ray keeps as a dict."""
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
        raise UsageError(
            f"parameter '{name}' holds others: write the space flat, one name for each parameter"
        )
    if not isinstance(value, sample.Domain):
        return value
    if isinstance(value, sample.Categorical):
        return list(value.categories)
    if isinstance(value, sample.Float | sample.Integer):
        return _range(name, value)
    raise UsageError(
        f"parameter '{name}' is drawn by a function (sample_from), from which no searcher can learn: write its range, "
        "such as {'int_log2': [2, 9]} for powers of two, or tune.choice"
    )


def _range(name: str, domain: Any) -> AnyDomain:
    sampler, step = domain.get_sampler(), None
    if isinstance(sampler, sample.Quantized):
        quantized: Any = sampler
        sampler, step = quantized.get_sampler(), quantized.q
    if isinstance(sampler, sample.Normal):
        raise UsageError(
            f"parameter '{name}' is drawn from a normal distribution, which has no ends: write tune.uniform(low, high)"
        )
    log = isinstance(sampler, sample.LogUniform)
    if isinstance(domain, sample.Float):
        if step is not None and log:
            raise UsageError(f"parameter '{name}': a logarithmic range has no steps here: leave out the step")
        return FloatRange(float(domain.lower), float(domain.upper), log, step)
    if step is None or step == 1:
        # Ray leaves the upper end out.
        return IntRange(int(domain.lower), int(domain.upper) - (step is None), log)
    values = range(int(domain.lower), int(domain.upper) + 1, int(step))
    if len(values) > MOST_STEPS:
        raise UsageError(f"parameter '{name}' has {len(values):,} steps: write it without a step")
    return Choice(tuple(values))
