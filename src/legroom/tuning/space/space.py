"""The search space: the domain of each parameter, and the condition under which the parameter is active.

    lr = {log = [1e-4, 1e-1]}
    batch_size = [2, 4, 8, 16]
    l1 = {int_log2 = [2, 9]}
    optimizer = ["sgd", "adam"]
    momentum = {uniform = [0.5, 0.99], when = {optimizer = "sgd"}}
    epochs = 10

A space can be written in TOML or as a Python dict. The configuration contains no inactive parameters.
"""

import itertools
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from legroom.errors import UsageError, did_you_mean
from legroom.tuning.space.domains import AnyDomain, Categorical, Sampled, domain_as_dict, read_domain

if TYPE_CHECKING:
    from numpy.random import Generator

Config = dict[str, Any]

MAX_GRID_POINTS = 100_000


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of the space, with its domain and condition."""

    name: str
    domain: AnyDomain
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """For each other parameter in the condition, the values for which this parameter is active. The parameter is active
    only if all conditions hold.
    """

    def is_active_in(self, config: Mapping[str, Any]) -> bool:
        return all(name in config and config[name] in values for name, values in self.when.items())


@dataclass(frozen=True, slots=True)
class Space:
    """The parameters and constants of a search. A parameter comes after all parameters on which its condition depends."""

    parameters: tuple[Parameter, ...]
    constants: Mapping[str, Any]

    @property
    def parameter_names(self) -> list[str]:
        return [parameter.name for parameter in self.parameters]

    @property
    def names(self) -> list[str]:
        return [*self.parameter_names, *self.constants]

    @property
    def has_conditions(self) -> bool:
        return any(parameter.when for parameter in self.parameters)

    def draw(self, rng: "Generator") -> Config:
        config = dict(self.constants)
        for parameter in self.parameters:
            if parameter.is_active_in(config):
                domain = parameter.domain
                config[parameter.name] = (
                    domain.draw(rng, config) if isinstance(domain, Sampled) else domain.draw(rng)
                )
        return config

    def check_points(self, points: Sequence[Mapping[str, Any]]) -> None:
        domains = {parameter.name: parameter.domain for parameter in self.parameters}
        for point in points:
            for name, value in point.items():
                if name not in domains and name not in self.constants:
                    raise UsageError(
                        f"The point {dict(point)} sets `{name}`, which is not in the space.{did_you_mean(name, self.names)}"
                    )
                if name in domains and not domains[name].contains(value):
                    raise UsageError(
                        f"The point {dict(point)} has a value for `{name}` that is not in the space: {value!r}."
                    )

    def with_constants(self, values: Mapping[str, Any]) -> Config:
        """Return the configuration with these values and all constants. Inactive parameters are omitted."""
        config = dict(self.constants)
        for parameter in self.parameters:
            if parameter.is_active_in(config) and parameter.name in values:
                config[parameter.name] = values[parameter.name]
        return config

    def as_dict(self) -> dict[str, Any]:
        content: dict[str, Any] = {}
        for parameter in self.parameters:
            when = {name: list(values) for name, values in parameter.when.items()}
            content[parameter.name] = domain_as_dict(parameter.domain) | ({"when": when} if when else {})
        return content | dict(self.constants)

    def grid(self) -> Iterator[Config]:
        """Yield all configurations, without duplicates. The alphabetically first parameter changes fastest, as in Ray Tune."""
        for parameter in self.parameters:
            if parameter.domain.grid() is None:
                raise UsageError(
                    f"Grid search needs a finite number of values for `{parameter.name}`. Add `points = 5` or a `step`, use a list "
                    "of values, or use random search."
                )
        seen: set[tuple[tuple[str, Any], ...]] = set()
        slowest_first = sorted(self.parameters, key=lambda parameter: parameter.name, reverse=True)
        names = [parameter.name for parameter in slowest_first]
        for values in itertools.product(*(parameter.domain.grid() or [] for parameter in slowest_first)):
            config = self.with_constants(dict(zip(names, values, strict=True)))
            key = tuple(sorted(config.items(), key=lambda item: item[0]))
            if key not in seen:
                if len(seen) >= MAX_GRID_POINTS:
                    raise UsageError(
                        f"The grid has more than {MAX_GRID_POINTS:,} points. Use fewer values, or use random search."
                    )
                seen.add(key)
                yield config


def read_space(given: Any) -> Space:
    """Read a space from a dict or a TOML file. A `[study]` table in the file is ignored."""
    if isinstance(given, Space):
        return given
    if isinstance(given, str | Path):
        given = read_toml(Path(given))[0]
    if not isinstance(given, Mapping):
        raise UsageError(f"The space must be a dict or a TOML file, not {type(given).__name__}.")
    domains: dict[str, AnyDomain] = {}
    conditions: dict[str, dict[str, tuple[Any, ...]]] = {}
    constants: dict[str, Any] = {}
    for name, value in given.items():
        if not isinstance(name, str) or not name:
            raise UsageError("Parameter names must be non-empty strings.")
        domain = read_domain(name, value)
        if domain is None:
            constants[name] = _plain_constant(name, value)
        else:
            domains[name] = domain
            conditions[name] = _conditions(name, value)
    if not domains:
        raise UsageError(
            "The space has no parameter to search. Add a range or choices, for example `lr = {log = [1e-4, 1e-1]}`."
        )
    for name, when in conditions.items():
        for other, values in when.items():
            _check_condition(name, other, values, domains, constants)
    ordered = _ordered(domains, conditions)
    return Space(tuple(Parameter(name, domains[name], conditions[name]) for name in ordered), constants)


def _plain_constant(name: str, value: Any) -> Any:
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()  # a NumPy scalar
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        raise UsageError(
            f"Parameter `{name}`: a constant must be a number, string, boolean or list, not {type(value).__name__}. Pass "
            f"other objects with `functools.partial(train, {name}=...)`."
        ) from None
    return value


def read_toml(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(
            f"The space file `{path}` does not exist. Create the file with a line such as `lr = {{log = "
            "[1e-4, 1e-1]}`."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"The space file `{path}` cannot be read: "
            f"{getattr(error, 'strerror', None) or 'the file is not UTF-8 text'}."
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from None
    study = content.pop("study", {})
    if not isinstance(study, dict):
        raise UsageError(
            f'{path}: `study` must be a table: `[study]` on its own line, followed by settings such as `metric = "loss"`.'
        )
    return content, study


def _conditions(name: str, written: Any) -> dict[str, tuple[Any, ...]]:
    when = written.get("when", {}) if isinstance(written, dict) else {}
    if not isinstance(when, dict):
        raise UsageError(
            f"Parameter `{name}`: specify a condition as `when = {{other = value}}`, where `other` is the name of another parameter."
        )
    return {
        other: tuple(value) if isinstance(value, list | tuple) else (value,) for other, value in when.items()
    }


def _check_condition(
    name: str,
    other: str,
    values: tuple[Any, ...],
    domains: Mapping[str, AnyDomain],
    constants: Mapping[str, Any],
) -> None:
    if other == name or (other not in domains and other not in constants):
        raise UsageError(f"Parameter `{name}` depends on `{other}`, which is not in the space.")
    domain = domains.get(other)
    if isinstance(domain, Categorical):
        missing = [value for value in values if value not in domain.options]
        if missing:
            raise UsageError(
                f"Parameter `{name}` requires {other} = {missing[0]!r}, which is not one of the choices "
                f"for `{other}`."
            )


def _ordered(domains: Mapping[str, AnyDomain], conditions: Mapping[str, Mapping[str, Any]]) -> list[str]:
    ordered: list[str] = []
    waiting = list(domains)
    while waiting:
        ready = [name for name in waiting if all(other not in waiting for other in conditions[name])]
        # A function may read all other parameters, so functions are called last.
        ready = [name for name in ready if not isinstance(domains[name], Sampled)] or ready
        if not ready:
            raise UsageError(f"The conditions of {' and '.join(waiting)} form a cycle.")
        ordered += ready
        waiting = [name for name in waiting if name not in ready]
    return ordered
