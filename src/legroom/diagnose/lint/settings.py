"""The settings of the linter, from the command line and from `[tool.legroom.lint]` in the nearest pyproject.toml.

    [tool.legroom.lint]
    select = ["LG1", "LG201"]
    ignore = ["LG406"]
    exclude = ["third_party"]
    per-file-ignores = { "tests/*" = ["LG201"] }

`--select` and `--ignore` replace the values in the file.
"""

import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

from legroom.diagnose.codes import all_pages
from legroom.errors import UsageError

_KEYS = {"select", "ignore", "exclude", "per-file-ignores"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of the linter."""

    select: tuple[str, ...] = ()
    """Selected codes or prefixes of codes. If no code is given, all codes except the optional codes are selected."""
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    """Patterns of files and folders to skip. A pattern matches a name, or a path relative to `folder`."""
    per_file_ignores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    folder: Path = Path()

    def codes_for(self, file: Path) -> frozenset[str]:
        optional = [code for code in rule_codes() if all_pages()[code].is_optional]
        selected = [
            code
            for code in rule_codes()
            if (code.startswith(self.select) if self.select else code not in optional)
        ]
        ignored = list(self.ignore)
        for pattern, codes in self.per_file_ignores.items():
            if matches(file, pattern, self.folder):
                ignored.extend(codes)
        return frozenset(code for code in selected if not code.startswith(tuple(ignored)) or not ignored)

    def excludes(self, path: Path) -> bool:
        return any(matches(path, pattern, self.folder) for pattern in self.exclude)

    def with_options(self, select: Iterable[str], ignore: Iterable[str]) -> "Settings":
        selected, ignored = parse_codes(select, "--select"), parse_codes(ignore, "--ignore")
        return replace(self, select=selected or self.select, ignore=ignored or self.ignore)


def rule_codes() -> list[str]:
    return [code for code, page in all_pages().items() if page.is_lint_rule]


def settings_for(file: Path) -> Settings:
    """Return the settings for a file, from the nearest pyproject.toml above it that contains linter settings."""
    return _folder_settings(Path(os.path.abspath(file)).parent)


@cache
def _folder_settings(folder: Path) -> Settings:
    file = folder / "pyproject.toml"
    if file.is_file():
        found = _read(file)
        if found is not None:
            return found
    return Settings(folder=folder) if folder.parent == folder else _folder_settings(folder.parent)


def _read(file: Path) -> Settings | None:
    try:
        tools = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {})
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} is not valid TOML: {error}") from None
    section = tools.get("legroom")
    if not isinstance(section, dict):
        return None
    table = section.get("lint", {key: value for key, value in section.items() if key in _KEYS})
    if not isinstance(table, dict):
        raise UsageError(f"{file}: [tool.legroom.lint] must be a table.")
    unknown = sorted(set(table) - _KEYS)
    if unknown:
        raise UsageError(
            f"{file}: unknown setting `{unknown[0]}` in [tool.legroom.lint]. Available: {', '.join(sorted(_KEYS))}."
        )
    per_file = table.get("per-file-ignores", {})
    if not isinstance(per_file, dict):
        raise UsageError(
            f"{file}: `per-file-ignores` must be a table that maps file patterns to lists of codes."
        )
    return Settings(
        select=parse_codes(_strings(file, table, "select"), f"{file}: select"),
        ignore=parse_codes(_strings(file, table, "ignore"), f"{file}: ignore"),
        exclude=tuple(_strings(file, table, "exclude")),
        per_file_ignores={
            pattern: parse_codes(_strings(file, per_file, pattern), f"{file}: per-file-ignores")
            for pattern in per_file
        },
        folder=file.parent,
    )


def _strings(file: Path, table: Mapping[str, Any], key: str) -> list[str]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise UsageError(f"{file}: `{key}` must be a list of strings.")
    return value


def parse_codes(codes: Iterable[str], where: str) -> tuple[str, ...]:
    """Parse comma-separated codes and prefixes of codes. `ALL` selects every rule."""
    found: list[str] = []
    for part in (part.strip().upper() for text in codes for part in text.split(",")):
        if not part:
            continue
        if part == "ALL":
            found.append("LG")
        elif any(code.startswith(part) for code in rule_codes()):
            found.append(part)
        else:
            raise UsageError(f"{where}: unknown rule {part}. List all rules with `legroom lint --rules`.")
    return tuple(found)


def matches(path: Path, pattern: str, folder: Path) -> bool:
    try:
        relative: Sequence[str] = Path(os.path.abspath(path)).relative_to(os.path.abspath(folder)).parts
    except ValueError:
        relative = path.parts
    wanted = pattern.rstrip("/")
    prefixes = ["/".join(relative[:end]) for end in range(1, len(relative) + 1)]
    return any(fnmatch(prefix, wanted) for prefix in prefixes) or any(
        fnmatch(part, wanted) for part in relative
    )
