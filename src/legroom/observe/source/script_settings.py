"""Collects the candidates for the batch size setting of a running script.

The candidates come from the command line and from the script's parser (argparse, click, absl). Local variables are also
candidates, because some parsers turn variables into options. Other candidates come from configuration files that the
script opened, from environment variables, and from constants in the source code. The names of the candidates determine
only their order. The caller checks a candidate by starting the script again with a different value (see
`batch_setting`).
"""

import _io
import argparse
import builtins
import functools
import io
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from types import FrameType
from typing import Any

from legroom.memory.event_base import Frame
from legroom.observe.holders.holders import clear_locals_copy
from legroom.observe.source.batch_argument import (
    LOOP_RANK,
    TASK_RANK,
    batch_size_rank,
    integer_arguments,
    suggests_evaluation,
    suggests_task_count,
)
from legroom.observe.source.batch_setting import SIZE, BatchSetting
from legroom.observe.source.constants import constants_in_config, constants_in_python
from legroom.observe.source.files import user_files
from legroom.observe.source.loader_argument import Origin, loader_argument, loop_argument
from legroom.observe.source.user_files import is_user_file

MAX_CONFIG_BYTES = 200_000
MAX_DEPTH, MAX_ITEMS = 3, 300
"""`MAX_DEPTH` is the maximum depth to which configuration objects are searched. `MAX_ITEMS` is the maximum number of
entries per object.
"""
UNNAMED_RANK = 4
"""The rank of arguments whose name does not suggest a batch size, but whose value equals the current batch size."""
ORIGIN_RANK = -2
"""The rank of a candidate from which the current DataLoader takes its batch size."""
_CONFIG_SUFFIXES = (".yaml", ".yml", ".json", ".toml", ".cfg", ".ini", ".py")
_ENVIRONMENT = re.compile(
    r"""(?:environ(?:\.get)?|getenv)\s*[\[(]\s*["'](?P<name>\w+)["'](?:\s*,\s*["']?(?P<default>\d+))?"""
)

_OPEN_MODULES: tuple[Any, ...] = (builtins, io, _io)
"""The modules that contain `open`. The function must be the same in all of them, so that it can be pickled."""
_OVERRIDING = re.compile(r"globals\(\)|\bexec\(|\bsetattr\(|\bvars\(")
"""Matches code that assigns command-line arguments to variables without an argument parser."""


class ScriptSettings:
    def __init__(self, arguments: tuple[str, ...]) -> None:
        self._arguments = arguments
        self._options: list[_Option] = []
        self._opened: dict[str, None] = {}
        self._parses = 0

    def follow(self) -> None:
        self._follow_argparse()
        self._follow_open()

    @contextmanager
    def followed_options(self) -> Iterator[None]:
        """Record the options that the script parses inside the `with` block, and the configuration files that it opens."""
        plain, plain_open = argparse.ArgumentParser.parse_known_args, builtins.open
        following, following_open = self._follow_argparse(), self._follow_open()
        try:
            yield
        finally:
            for module in _OPEN_MODULES:
                if module.open is following_open:
                    module.open = plain_open
            if argparse.ArgumentParser.parse_known_args is following:
                argparse.ArgumentParser.parse_known_args = plain  # type: ignore[method-assign]

    def candidates(
        self,
        size: int | None,
        *,
        only_declared: bool = False,
        loader: Sequence[Frame] = (),
        running: Sequence[Frame] = (),
        call: Frame | None = None,
    ) -> list[BatchSetting]:
        """Return all candidates, most likely first. `size` is the current batch size, if known. `loader` are the lines
        that created the current DataLoader, if known. A candidate from which the DataLoader takes its batch size has a
        negative rank. `running` are the running lines, innermost first, whose loops may split the data instead of a
        DataLoader. `call` is the line that called the model.

        With `only_declared`, a variable counts as an option only if code in its file assigns command-line arguments to
        variables.
        """
        options = [*self._options, *_click_options(), *_absl_options()]
        origin = loader_argument(loader) if size not in (None, 1) else loop_argument(running, call)
        found = [*self._given(options, size, origin), *self._defaults(options, origin)]
        if not options:
            found += self._variables(only_declared, origin)
        found += [*self._environment(origin), *self._files(origin)]
        unique: dict[tuple[str, str, int], BatchSetting] = {}
        for setting in sorted(found, key=lambda each: (each.rank, each.value != size)):
            unique.setdefault((setting.text, setting.file, setting.line), setting)
        return list(unique.values())

    # --- the command line

    def _given(
        self, options: "list[_Option]", size: int | None, origin: Origin | None
    ) -> Iterator[BatchSetting]:
        names = {text: option for option in options for text in option.names}
        for argument in integer_arguments(self._arguments):
            option = names.get(argument.name) or _abbreviated(argument.name, names)
            rank = _best_rank((argument.name, *(option.all_names if option else ())), origin)
            if rank is None and argument.value == size:
                rank = UNNAMED_RANK
            if rank is not None and argument.value > 0:
                arguments = argument.replace_in(self._arguments)
                arguments[argument.position] = (
                    arguments[argument.position].removesuffix(str(argument.value)) + SIZE
                )
                yield BatchSetting(
                    name=argument.name, value=argument.value, rank=rank, arguments=tuple(arguments),
                    text=f"{argument.name}{argument.separator}{SIZE}",
                )  # fmt: skip
        after_option = {each.position for each in integer_arguments(self._arguments)}
        for position, text in enumerate(self._arguments):
            if not text.isdecimal() or position in after_option or int(text) == 0:
                continue
            named = [option for option in options if not option.names and option.value == int(text)]
            rank = _best_rank([name for option in named for name in option.all_names], origin)
            if rank is None and int(text) == size:
                rank = UNNAMED_RANK
            if rank is not None:
                arguments = list(self._arguments)
                arguments[position] = SIZE
                shown = " ".join(arguments)
                yield BatchSetting(
                    name=text, value=int(text), rank=rank, text=shown, arguments=tuple(arguments)
                )

    def _defaults(self, options: "list[_Option]", origin: Origin | None) -> Iterator[BatchSetting]:
        for option in options:
            rank = _best_rank(option.all_names, origin)
            if rank is None or not option.names or option.value <= 0 or self._is_given(option):
                continue
            name = max(option.names, key=lambda each: (each.startswith("--"), len(each)))
            separator = "=" if option.with_equals else " "
            added = (f"{name}={SIZE}",) if option.with_equals else (name, SIZE)
            arguments = (*self._arguments, *added) if option.is_nested else (*added, *self._arguments)
            yield BatchSetting(
                name=name, value=option.value, rank=rank, arguments=arguments, is_given=False,
                text=f"{name}{separator}{SIZE}",
            )  # fmt: skip

    def _is_given(self, option: "_Option") -> bool:
        names = dict.fromkeys(option.names, option)
        words = [argument.partition("=")[0] for argument in self._arguments]
        return any(word in names or _abbreviated(word, names) is not None for word in words) or any(
            word[:2] in names and not word.startswith("--") for word in words
        )

    def _follow_argparse(self) -> Any:
        plain = argparse.ArgumentParser.parse_known_args

        @functools.wraps(plain)
        def parse_known_args(parser: Any, *args: Any, **kwargs: Any) -> Any:
            self._parses += 1
            try:
                result = plain(parser, *args, **kwargs)
            finally:
                self._parses -= 1
            for action in parser._actions:
                value = getattr(result[0], action.dest, None)
                if type(value) is int:
                    names = tuple(action.option_strings)
                    self._options.append(_Option(names, value, action.dest, is_nested=self._parses > 0))
            return result

        argparse.ArgumentParser.parse_known_args = parse_known_args  # type: ignore[method-assign,assignment]
        return parse_known_args

    # --- variables, for parsers that turn them into options (fire, tyro, hydra, a loop over `sys.argv`)

    def _variables(self, only_declared: bool, origin: Origin | None) -> Iterator[BatchSetting]:
        if not any(name in sys.modules for name in ("fire", "tyro", "hydra")) and not any(
            "argv" in text and (not only_declared or _OVERRIDING.search(text)) for _, text in self._sources()
        ):
            return
        for path, value in _named_integers(_user_frames()):
            rank = _best_rank([path], origin)
            if rank is None:
                continue
            last, _, inner = path.rpartition(".")[2], *path.partition(".")[1:]
            if inner and "fire" in sys.modules:
                continue  # fire turns only parameters of functions into options
            spellings = [("--" + last, "=")]
            if "tyro" in sys.modules:
                spellings = [("--" + (inner or path).replace("_", "-"), " ")]
            if "hydra" in sys.modules and inner:
                spellings = [(inner, "=")]
            for name, separator in spellings:
                if any(argument.partition("=")[0] == name for argument in self._arguments):
                    continue
                added = (f"{name}={SIZE}",) if separator == "=" else (name, SIZE)
                yield BatchSetting(
                    name=name, value=value, rank=rank, text=f"{name}{separator}{SIZE}",
                    arguments=(*self._arguments, *added), is_given=False,
                )  # fmt: skip

    # --- files and environment variables

    def _follow_open(self) -> Any:
        """Record the files that are opened with `open` or `io.open`. Python's audit hooks also report opened files, but
        a hook would run for every other audit event too, for example for each `sys._getframe()`.
        """
        plain = builtins.open

        @functools.wraps(plain)
        def open_file(*args: Any, **kwargs: Any) -> Any:
            file = plain(*args, **kwargs)
            self._record_opened(*args[:2], **kwargs)
            return file

        for module in _OPEN_MODULES:
            if module.open is plain:
                module.open = open_file
        return open_file

    def _record_opened(self, file: Any, mode: Any = "r", **_: Any) -> None:
        # The path of any other class could be computed again with a side effect.
        if isinstance(file, str | PurePath) and mode in ("r", "rt", "rb") and len(self._opened) < MAX_ITEMS:
            path = str(file)
            if path.endswith(_CONFIG_SUFFIXES):
                self._opened[os.path.abspath(path)] = None

    def _environment(self, origin: Origin | None) -> Iterator[BatchSetting]:
        for _, text in self._sources():
            for match in _ENVIRONMENT.finditer(text):
                name, rank = match["name"], _best_rank([match["name"]], origin)
                value = os.environ.get(name) or match["default"] or ""
                if rank is not None and value.isdecimal() and int(value) > 0:
                    yield BatchSetting(
                        name=name, value=int(value), rank=rank, text=f"{name}={SIZE}", variable=name,
                        is_given=name in os.environ,
                    )  # fmt: skip

    def _files(self, origin: Origin | None) -> Iterator[BatchSetting]:
        script = getattr(sys.modules.get("__main__"), "__file__", None)
        for path, text in self._sources():
            if path.endswith(".py"):
                is_script = script is None or path == os.path.abspath(script)
                constants = constants_in_python(text, SIZE, is_script=is_script)
            else:
                constants = constants_in_config(text, SIZE)
            for each in constants:
                rank = _best_rank([each.path], None if origin is not None and origin.position else origin)
                if origin is not None and origin.position == (path, each.line, each.column):
                    rank = _rank_of_origin(rank, origin)
                sections = each.path.split(".")[:-1]
                if rank == ORIGIN_RANK and sections and origin is not None:
                    words = re.findall(r"\w+", origin.path)
                    rank -= all(name in words for name in sections)  # `config["train"]["size"]`
                if rank in (None, TASK_RANK) or (
                    len(each.name) == 1 and rank >= 0
                ):  # `b = 2` may be any number
                    continue
                yield BatchSetting(
                    name=each.name if path.endswith(".py") else each.path, value=each.value, rank=rank + 1 + each.is_default,
                    line=each.line, file=path, text=each.text,
                    content=text[: each.begin] + SIZE + text[each.end :],
                )  # fmt: skip

    def _sources(self) -> Iterator[tuple[str, str]]:
        for path in dict.fromkeys([*user_files(), *filter(is_user_file, self._opened)]):
            try:
                if os.path.getsize(path) <= MAX_CONFIG_BYTES:
                    yield os.path.abspath(path), Path(path).read_text("utf-8-sig")
            except (OSError, UnicodeDecodeError):
                continue


class _Option:
    def __init__(
        self,
        names: tuple[str, ...],
        value: int,
        destination: str,
        *,
        is_nested: bool = False,
        with_equals: bool = False,
    ) -> None:
        self.names, self.value, self.destination = names, value, destination
        self.is_nested, self.with_equals = is_nested, with_equals

    @property
    def all_names(self) -> tuple[str, ...]:
        return (*self.names, self.destination)


def _click_options() -> Iterator[_Option]:
    for name in ("click", "typer._click"):
        current = getattr(sys.modules.get(name), "get_current_context", None) or getattr(
            sys.modules.get(f"{name}.globals"), "get_current_context", None
        )
        context = current(silent=True) if current is not None else None
        depth = 0
        while context is not None and depth < MAX_DEPTH:
            for parameter in context.command.params:
                value = context.params.get(parameter.name)
                if type(value) is int:
                    names = tuple(each for each in parameter.opts if each.startswith("-"))
                    yield _Option(names, value, str(parameter.name), is_nested=context.parent is not None)
            context, depth = context.parent, depth + 1


def _absl_options() -> Iterator[_Option]:
    flags = getattr(sys.modules.get("absl.flags"), "FLAGS", None)
    if flags is None or not flags.is_parsed():
        return
    for name in list(flags):
        if type(flags[name].value) is int:
            yield _Option((f"--{name}",), flags[name].value, name, with_equals=True)


def _abbreviated(word: str, names: Mapping[str, _Option]) -> _Option | None:
    """Return the option that argparse would select for `word`. `word` may be an abbreviation of the option name."""
    if not word.startswith("--") or len(word) < 4:
        return None
    matches = {id(option): option for name, option in names.items() if name.startswith(word)}
    return next(iter(matches.values())) if len(matches) == 1 else None


def _best_rank(names: Iterable[str], origin: Origin | None) -> int | None:
    ranks = []
    for name in names:
        rank = batch_size_rank(name)
        if rank is None and origin is not None and origin.has_tasks and suggests_task_count(name):
            rank = TASK_RANK
        if origin is not None and _is_origin(name, origin):
            rank = _rank_of_origin(rank, origin)
        ranks.append(rank)
    return min((rank for rank in ranks if rank is not None), default=None)


def _rank_of_origin(rank: int | None, origin: Origin) -> int:
    return LOOP_RANK if rank is None and origin.is_loop else ORIGIN_RANK


def _is_origin(name: str, origin: Origin) -> bool:
    last = name.lstrip("-").replace("-", "_").rpartition(".")[2]
    return last in origin.names and suggests_evaluation(name) == suggests_evaluation(origin.path)


def _user_frames() -> list[FrameType]:
    frames, frame = [], sys._getframe(1)
    found: FrameType | None = frame
    while found is not None:
        if is_user_file(found.f_code.co_filename):
            frames.append(found)
        found = found.f_back
    return frames


def _named_integers(frames: list[FrameType]) -> Iterator[tuple[str, int]]:
    """Yield the dotted name and the value of each integer in the frames' local variables and the configuration objects
    that they contain.
    """
    seen: set[int] = set()

    def search(prefix: str, entries: Mapping[Any, Any], depth: int) -> Iterator[tuple[str, int]]:
        if id(entries) in seen:
            return
        seen.add(id(entries))
        for key, value in list(entries.items())[:MAX_ITEMS]:
            if not isinstance(key, str) or key.startswith("_"):
                continue
            if type(value) is int:
                yield prefix + key, value
            elif depth and isinstance(value, Mapping):
                yield from search(f"{prefix}{key}.", value, depth - 1)
            elif (
                depth
                and type(value).__module__.split(".")[0] not in _LIBRARIES
                and isinstance(getattr(value, "__dict__", None), dict)
            ):
                yield from search(f"{prefix}{key}.", vars(value), depth - 1)

    for frame in frames:
        variables = frame.f_locals
        yield from search("", variables, MAX_DEPTH)
        clear_locals_copy(frame, variables)


_LIBRARIES = frozenset({"torch", "builtins", "numpy", "legroom", "types", "importlib", "functools"})
