"""The space of a search: what each parameter may be, and when it counts at all.

    lr = {log = [1e-4, 1e-1]}
    batch_size = [2, 4, 8, 16]
    l1 = {int_log2 = [2, 9]}
    optimizer = ["sgd", "adam"]
    momentum = {uniform = [0.5, 0.99], when = {optimizer = "sgd"}}
    epochs = 10

The same in TOML and as a Python dict. A parameter whose condition does not hold is not in the configuration.
"""

import itertools
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from legroom.errors import UsageError
from legroom.tuning.space.domains import AnyDomain, Choice, read_domain, written

if TYPE_CHECKING:
    from numpy.random import Generator

Config = dict[str, Any]
"""What one trial is given: parameter → value."""

LARGEST_GRID = 100_000


@dataclass(frozen=True, slots=True)
class Parameter:
    """One dimension of the space."""

    name: str
    domain: AnyDomain
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Counts only where each of these other parameters has one of these values."""

    def counts_in(self, config: Mapping[str, Any]) -> bool:
        return all(name in config and config[name] in values for name, values in self.when.items())


@dataclass(frozen=True, slots=True)
class Space:
    """The parameters in an order in which each comes after those that it depends on, and what never changes."""

    parameters: tuple[Parameter, ...]
    constants: Mapping[str, Any]

    @property
    def searched(self) -> list[str]:
        """The parameters' names."""
        return [parameter.name for parameter in self.parameters]

    @property
    def names(self) -> list[str]:
        return [*self.searched, *self.constants]

    @property
    def has_conditions(self) -> bool:
        return any(parameter.when for parameter in self.parameters)

    def draw(self, dice: "Generator") -> Config:
        """One configuration at random."""
        config = dict(self.constants)
        for parameter in self.parameters:
            if parameter.counts_in(config):
                config[parameter.name] = parameter.domain.draw(dice)
        return config

    def with_constants(self, values: Mapping[str, Any]) -> Config:
        """A whole configuration from values of the parameters; those whose condition does not hold are left out."""
        config = dict(self.constants)
        for parameter in self.parameters:
            if parameter.counts_in(config) and parameter.name in values:
                config[parameter.name] = values[parameter.name]
        return config

    def written(self) -> dict[str, Any]:
        """As people write it: what `read_space` makes the same space of."""
        told: dict[str, Any] = {}
        for parameter in self.parameters:
            when = {name: list(values) for name, values in parameter.when.items()}
            told[parameter.name] = written(parameter.domain) | ({"when": when} if when else {})
        return told | dict(self.constants)

    def grid(self) -> Iterator[Config]:
        """Every configuration there is, none twice. The first parameter in alphabetical order changes fastest, as in Ray Tune's grids."""
        for parameter in self.parameters:
            if parameter.domain.grid() is None:
                raise UsageError(
                    f"a grid cannot count off '{parameter.name}', a range without steps: give it `points = 5`, a `step` or a list "
                    "of values, or use random search"
                )
        seen: set[tuple[tuple[str, Any], ...]] = set()
        slowest_first = sorted(self.parameters, key=lambda parameter: parameter.name, reverse=True)
        names = [parameter.name for parameter in slowest_first]
        for values in itertools.product(*(parameter.domain.grid() or [] for parameter in slowest_first)):
            config = self.with_constants(dict(zip(names, values, strict=True)))
            key = tuple(sorted(config.items(), key=lambda item: item[0]))
            if key not in seen:
                if len(seen) >= LARGEST_GRID:
                    raise UsageError(
                        f"the grid has more than {LARGEST_GRID:,} points: leave some out, or use random search"
                    )
                seen.add(key)
                yield config


def read_space(given: Any) -> Space:
    """A space from a dict or a TOML file (`[study]` in it is for the command line and is left aside)."""
    if isinstance(given, Space):
        return given
    if isinstance(given, str | Path):
        given = read_toml(Path(given))[0]
    if not isinstance(given, Mapping):
        raise UsageError(f"the space is a dict or a TOML file, not a {type(given).__name__}")
    domains: dict[str, AnyDomain] = {}
    conditions: dict[str, dict[str, tuple[Any, ...]]] = {}
    constants: dict[str, Any] = {}
    for name, value in given.items():
        if not isinstance(name, str) or not name:
            raise UsageError("the names of parameters are texts")
        domain = read_domain(name, value)
        if domain is None:
            constants[name] = value
        else:
            domains[name] = domain
            conditions[name] = _conditions(name, value)
    if not domains:
        raise UsageError(
            "the space has nothing to search: give a parameter a range or choices, such as lr = {log = [1e-4, 1e-1]}"
        )
    for name, when in conditions.items():
        for other, values in when.items():
            _check_condition(name, other, values, domains, constants)
    ordered = _ordered(domains, conditions)
    return Space(tuple(Parameter(name, domains[name], conditions[name]) for name in ordered), constants)


def read_toml(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a TOML file says of the space, and of the study (`[study]`)."""
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(
            f"there is no space file '{path}': write one, such as lr = {{log = [1e-4, 1e-1]}}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the space file '{path}' cannot be read: {getattr(error, 'strerror', None) or 'it is no UTF-8 text'}"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is no TOML: {error}") from None
    study = told.pop("study", {})
    if not isinstance(study, dict):
        raise UsageError(f'{path}: [study] is a table, with metric = "loss" and the like')
    return told, study


def _conditions(name: str, written: Any) -> dict[str, tuple[Any, ...]]:
    when = written.get("when", {}) if isinstance(written, dict) else {}
    if not isinstance(when, dict):
        raise UsageError(
            f"parameter '{name}': when = {{other = value}} names another parameter and its value"
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
        raise UsageError(f"parameter '{name}' depends on '{other}', which the space does not have")
    domain = domains.get(other)
    if isinstance(domain, Choice):
        missing = [value for value in values if value not in domain.options]
        if missing:
            raise UsageError(
                f"parameter '{name}' waits for {other} = {missing[0]!r}, which is none of its choices"
            )


def _ordered(domains: Mapping[str, AnyDomain], conditions: Mapping[str, Mapping[str, Any]]) -> list[str]:
    ordered: list[str] = []
    waiting = list(domains)
    while waiting:
        ready = [name for name in waiting if all(other not in waiting for other in conditions[name])]
        if not ready:
            raise UsageError(f"the conditions of {' and '.join(waiting)} go round in a circle")
        ordered += ready
        waiting = [name for name in waiting if name not in ready]
    return ordered
