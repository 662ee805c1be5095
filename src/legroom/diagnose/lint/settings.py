"""What to check: rules chosen on the command line and in `[tool.legroom.lint]` of the nearest pyproject.toml.

    [tool.legroom.lint]
    select = ["LG1", "LG201"]
    ignore = ["LG406"]
    exclude = ["third_party"]
    per-file-ignores = { "tests/*" = ["LG201"] }

What the command line says of `select` and `ignore` takes the place of what the file says.
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
    select: tuple[str, ...] = ()
    """Codes or their beginnings; none means all."""
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    """Patterns of files and folders, against the name and the path from the settings' folder."""
    per_file_ignores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    folder: Path = Path()

    def codes_for(self, file: Path) -> frozenset[str]:
        """The rules that this file is held to."""
        chosen = [code for code in rule_codes() if not self.select or code.startswith(self.select)]
        dropped = list(self.ignore)
        for pattern, codes in self.per_file_ignores.items():
            if matches(file, pattern, self.folder):
                dropped.extend(codes)
        return frozenset(code for code in chosen if not code.startswith(tuple(dropped)) or not dropped)

    def excludes(self, path: Path) -> bool:
        return any(matches(path, pattern, self.folder) for pattern in self.exclude)

    def chosen(self, select: Iterable[str], ignore: Iterable[str]) -> "Settings":
        """With what the command line says instead, where it says anything."""
        selected, ignored = checked_codes(select, "--select"), checked_codes(ignore, "--ignore")
        return replace(self, select=selected or self.select, ignore=ignored or self.ignore)


def rule_codes() -> list[str]:
    """Every code that has a lint rule."""
    return [code for code, page in all_pages().items() if page.is_lint_rule]


def settings_for(file: Path) -> Settings:
    """From the nearest pyproject.toml above a file that has settings for the linter."""
    return _settings_of_folder(Path(os.path.abspath(file)).parent)


@cache
def _settings_of_folder(folder: Path) -> Settings:
    file = folder / "pyproject.toml"
    if file.is_file():
        found = _read(file)
        if found is not None:
            return found
    return Settings(folder=folder) if folder.parent == folder else _settings_of_folder(folder.parent)


def _read(file: Path) -> Settings | None:
    try:
        tools = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {})
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read as TOML: {error}") from None
    ours = tools.get("legroom")
    if not isinstance(ours, dict):
        return None
    table = ours.get("lint", {key: value for key, value in ours.items() if key in _KEYS})
    if not isinstance(table, dict):
        raise UsageError(f"{file}: [tool.legroom.lint] must be a table")
    unknown = sorted(set(table) - _KEYS)
    if unknown:
        raise UsageError(
            f"{file}: [tool.legroom.lint] has no `{unknown[0]}`: it knows {', '.join(sorted(_KEYS))}"
        )
    per_file = table.get("per-file-ignores", {})
    if not isinstance(per_file, dict):
        raise UsageError(f"{file}: `per-file-ignores` must be a table of patterns and codes")
    return Settings(
        select=checked_codes(_texts(file, table, "select"), f"{file}: select"),
        ignore=checked_codes(_texts(file, table, "ignore"), f"{file}: ignore"),
        exclude=tuple(_texts(file, table, "exclude")),
        per_file_ignores={
            pattern: checked_codes(_texts(file, per_file, pattern), f"{file}: per-file-ignores")
            for pattern in per_file
        },
        folder=file.parent,
    )


def _texts(file: Path, table: Mapping[str, Any], key: str) -> list[str]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise UsageError(f"{file}: `{key}` must be a list of texts")
    return value


def checked_codes(codes: Iterable[str], where: str) -> tuple[str, ...]:
    """Codes and their beginnings in capitals; `ALL` is every one. Several may stand in one text, parted by commas."""
    found: list[str] = []
    for part in (part.strip().upper() for text in codes for part in text.split(",")):
        if not part:
            continue
        if part == "ALL":
            found.append("LG")
        elif any(code.startswith(part) for code in rule_codes()):
            found.append(part)
        else:
            raise UsageError(f"{where}: no rule has the code {part}: see `legroom lint --rules`")
    return tuple(found)


def matches(path: Path, pattern: str, folder: Path) -> bool:
    """Whether a pattern means a path: by its name, or by its way from the settings' folder."""
    try:
        relative: Sequence[str] = Path(os.path.abspath(path)).relative_to(os.path.abspath(folder)).parts
    except ValueError:
        relative = path.parts
    wanted = pattern.rstrip("/")
    ways = ["/".join(relative[:end]) for end in range(1, len(relative) + 1)]
    return any(fnmatch(way, wanted) for way in ways) or any(fnmatch(part, wanted) for part in relative)
