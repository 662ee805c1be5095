"""The rows of a capture file: events as lines of JSON, and back.

A capture is a series of chunks. A chunk is one gzip member of JSON lines that needs no other chunk to be
understood:

    {"format": "legroom capture", "version": 2, ...}    the header
    ["s", device, stream, category, phase, module, file, line, function, op]
                                                        a site: where storages are born; numbered from 0 as they come
    ["l", time, id, bytes, block bytes, step, site]     a storage that was alive when the chunk began
    ["r", device, bytes]                                what the allocator had reserved when the chunk began
    ["b", number of "l" rows]                           from here on, events
    ["a", time, id, bytes, block bytes - bytes, step, site]     Alloc
    ["f", time, id]                                             Free
    ["t", id, category]                                         Tag
    ["g", ...] ["p", ...] ["o", ...] ["h", ...]                 Segment, Step, Oom, Holder: their fields in order
    ["n", time, class name, ...]                                Annotation: its other fields in order
    ["e"]                                                       the run ended, nothing is missing

Times are whole microseconds. The time of an "a" or "f" row counts from the "a" or "f" row before it (the first,
from the header's time); the id of an "a" row from the "a" row before it (the first, from 0); the id of an "f" or
"t" row *back* from the last "a" row. One training step then reads much like another, and that is what makes a
capture small: about 4 bytes an event. Sites serve the same end, and make encoding an event one look-up and one
formatted string.

Nothing is trusted on the way back: a capture may come from a stranger.
"""

# ruff: noqa: UP031  (percent formatting is as fast as a bare f-string, and refuses what is no number)
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from math import isfinite
from typing import Any, NoReturn, get_args

from legroom.memory.annotations import Annotation, ExitReason, LeakHolder, LeakKind
from legroom.memory.events import (
    Alloc,
    Category,
    Event,
    Frame,
    Free,
    Holder,
    Oom,
    Phase,
    Segment,
    Step,
    Tag,
)

FORMAT = "legroom capture"
VERSION = 2

Site = tuple[int, int, Category, Phase, str, Frame | None, str]
"""Device, stream, category, phase, module, frame, operation: what the allocations of one line have in common."""


class RowEncoder:
    """Turns events into rows; knows what is alive, since every chunk begins by saying so."""

    def __init__(self) -> None:
        self.events = 0
        """How many were encoded so far."""
        self.time = 0
        """The latest so far, in microseconds."""
        self.allocated: defaultdict[int, int] = defaultdict(int)
        """Of each device, now; likewise the three below."""
        self.reserved: defaultdict[int, int] = defaultdict(int)
        self.peak_allocated: defaultdict[int, int] = defaultdict(int)
        self.peak_reserved: defaultdict[int, int] = defaultdict(int)
        self.step_rows: list[str] = []
        """Those of this chunk: they are kept when the rest of it is dropped."""
        self.ooms = 0
        """How many this chunk holds."""
        self._live: dict[int, Alloc] = {}
        self._tags: dict[int, Category] = {}
        self._sites: dict[Site, int] = {}
        self._last_time = 0
        self._last_id = 0

    def begin_chunk(self, header: dict[str, Any]) -> list[str]:
        """The rows that open a new chunk: `header`, completed, and what is alive now."""
        self.step_rows, self.ooms = [], 0
        self._sites = {}
        self._last_time, self._last_id = self.time, 0
        rows = [to_json({**header, "first_event": self.events, "time": self.time})]
        for alloc in self._live.values():
            category = self._tags.get(alloc.id, alloc.category)
            key = (alloc.device, alloc.stream, category, alloc.phase, alloc.module, alloc.frame, alloc.op)
            site = self._sites.get(key)
            if site is None:
                site = self._declare(key, rows.append)
            numbers = (round(alloc.time * 1e6), alloc.id, alloc.bytes, alloc.block_bytes, alloc.step, site)
            rows.append('["l",%d,%d,%d,%d,%d,%d]' % numbers)
        rows += (to_json(["r", device, size]) for device, size in self.reserved.items() if size)
        rows.append(to_json(["b", len(self._live)]))
        return rows

    def encode(self, events: Sequence[Event]) -> list[str]:
        # This loop meets every storage of a live run.
        rows: list[str] = []
        add = rows.append
        live, tags, sites = self._live, self._tags, self._sites
        allocated, peak_allocated = self.allocated, self.peak_allocated
        last_time, last_id = self._last_time, self._last_id
        for event in events:
            if isinstance(event, Alloc):
                time, id, size, block, device, stream, category, phase, step, module, frame, op = event
                key = (device, stream, category, phase, module, frame, op)
                site = sites.get(key)
                if site is None:
                    site = self._declare(key, add)
                now = round(time * 1e6)
                add(
                    '["a",%d,%d,%d,%d,%d,%d]'
                    % (now - last_time, id - last_id, size, block - size, step, site)
                )
                last_time, last_id = now, id
                if id in live:
                    self._bury(id)
                live[id] = event
                total = allocated[device] + block
                allocated[device] = total
                if total > peak_allocated[device]:
                    peak_allocated[device] = total
            elif isinstance(event, Free):
                time, id = event
                now = round(time * 1e6)
                add('["f",%d,%d]' % (now - last_time, last_id - id))
                last_time = now
                if id in live:
                    self._bury(id)
            elif isinstance(event, Tag):
                id, category = event
                add('["t",%d,"%s"]' % (last_id - id, category))
                if id in live:
                    tags[id] = category
            else:
                self._encode_rare(event, add)
        self._last_time, self._last_id = last_time, last_id
        self.time = max(self.time, last_time)
        self.events += len(events)
        return rows

    def _encode_rare(
        self, event: Segment | Step | Oom | Holder | Annotation, add: Callable[[str], None]
    ) -> None:
        if isinstance(event, Holder):
            add(to_json(["h", *event]))
            return
        now = round(event.time * 1e6)
        self.time = max(self.time, now)
        if isinstance(event, Annotation):
            kind = type(event)
            add(to_json(["n", now, kind.__name__, *(getattr(event, name) for name, _ in _FIELDS[kind])]))
            return
        row = to_json([_LETTERS[type(event)], now, *event[1:]])
        add(row)
        if isinstance(event, Segment):
            reserved = self.reserved[event.device] + event.bytes
            self.reserved[event.device] = reserved
            self.peak_reserved[event.device] = max(self.peak_reserved[event.device], reserved)
        elif isinstance(event, Step):
            self.step_rows.append(row)
        elif isinstance(event, Oom):
            self.ooms += 1

    def _declare(self, key: Site, add: Callable[[str], None]) -> int:
        number = self._sites[key] = len(self._sites)
        *where, frame, op = key
        add(to_json(["s", *where, *(frame or (None, None, None)), op]))
        return number

    def _bury(self, id: int) -> None:
        dead = self._live.pop(id)
        self.allocated[dead[4]] -= dead[3]
        if id in self._tags:
            del self._tags[id]


_LETTERS: dict[type[Event], str] = {Segment: "g", Step: "p", Oom: "o"}


def to_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


class BadRow(Exception):  # noqa: N818  (says what it is; never leaves the reader)
    """A row that no writer of ours made."""


class RowDecoder:
    """Turns the rows of one chunk back into events, and checks every value on the way."""

    def __init__(self, time: int, known: dict[Site, Site], *, state_first: bool) -> None:
        """`known` is shared between the chunks of a file, so that equal sites are one object in memory."""
        self.time = time
        """When the chunk began, in microseconds."""
        self.live: dict[int, Alloc] = {}
        self.reserved: dict[int, int] = {}
        self.begun = not state_first
        """Whether `live` and `reserved` are complete: the state of things when the chunk began."""
        self.ended = False
        self._known = known
        self._sites: list[Site] = []
        self._last_time = time
        self._last_id = 0

    def decode(self, rows: Sequence[Any], into: list[Event]) -> None:
        """Append what `rows` say to `into`; on a bad row, what came before it is there."""
        remaining = iter(rows)
        try:
            if not self.begun:
                self._decode_state(remaining)
            self._decode_events(remaining, into)
        except (TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise BadRow from error

    def _decode_state(self, rows: Iterator[Any]) -> None:
        for row in rows:
            match row:
                case ["s", *_]:
                    self._decode_site(row)
                case ["l", time, id, size, block, step, site]:
                    where = self._sites[_count(site)]
                    device, stream, category, phase, module, frame, op = where
                    self.live[_whole(id)] = Alloc(
                        _time(time), id, _count(size), _count(block), device, stream,
                        category, phase, _whole(step), module, frame, op,
                    )  # fmt: skip
                case ["r", device, size]:
                    self.reserved[_whole(device)] = _whole(size)
                case ["b", number]:
                    if number != len(self.live):
                        raise BadRow
                    self.begun = True
                    return
                case _:
                    raise BadRow

    def _decode_events(self, rows: Iterator[Any], into: list[Event]) -> None:
        add = into.append
        new = tuple.__new__  # a third of the time of calling Alloc itself
        sites = self._sites
        last_time, last_id = self._last_time, self._last_id
        for row in rows:
            letter = row[0]
            if letter == "a":
                _, delta, age, size, rest, step, site = row
                if not (
                    type(delta) is type(age) is type(size) is type(rest) is type(step) is type(site) is int
                ):
                    raise BadRow
                last_time += delta
                last_id += age
                block = size + rest
                if not (
                    _LEAST < last_time < _MOST
                    and _LEAST < last_id < _MOST
                    and 0 <= size < _MOST
                    and 0 <= block < _MOST
                    and _LEAST < step < _MOST
                    and site >= 0
                ):
                    raise BadRow
                device, stream, category, phase, module, frame, op = sites[site]
                add(
                    new(
                        Alloc,
                        (
                            last_time / 1e6, last_id, size, block, device, stream,
                            category, phase, step, module, frame, op,
                        ),
                    )
                )  # fmt: skip
            elif letter == "f":
                _, delta, age = row
                if not (type(delta) is type(age) is int):
                    raise BadRow
                last_time += delta
                id = last_id - age
                if not (_LEAST < last_time < _MOST and _LEAST < id < _MOST):
                    raise BadRow
                add(new(Free, (last_time / 1e6, id)))
            elif letter == "t":
                _, age, category_text = row
                add(Tag(_whole(last_id - _whole(age)), _CATEGORIES[category_text]))
            elif letter == "s":
                self._decode_site(row)
            elif letter == "e":
                self.ended = True
                break
            else:
                add(_decode_rare(row))
        self._last_time, self._last_id = last_time, last_id

    def _decode_site(self, row: list[Any]) -> None:
        _, device, stream, category, phase, module, file, line, function, op = row
        site = (
            _whole(device),
            _whole(stream),
            _CATEGORIES[category],
            _PHASES[phase],
            _text(module),
            _frame(None if file is None else [file, line, function]),
            _text(op),
        )
        self._sites.append(self._known.setdefault(site, site))


def _decode_rare(row: list[Any]) -> Event:
    match row:
        case ["g", time, device, size]:
            return Segment(_time(time), _whole(device), _whole(size))
        case ["p", time, step, seconds, *sizes]:
            return Step(_time(time), _whole(step), _number(seconds), *map(_whole, sizes))
        case ["o", time, *sizes, step, phase, module, frame, op, message]:
            where = (_whole(step), _PHASES[phase], _text(module), _frame(frame), _text(op), _text(message))
            return Oom._make((_time(time), *map(_whole, sizes), *where))
        case ["h", path, size, count, frame]:
            return Holder(_text(path), _whole(size), _whole(count), _frame(frame))
        case ["n", time, name, *values]:
            kind = _ANNOTATIONS[name]
            checked = {name: check(value) for (name, check), value in zip(_FIELDS[kind], values, strict=True)}
            return kind(time=_time(time), **checked)
    raise BadRow


_CATEGORIES: dict[str, Category] = {str(category): category for category in Category}
_PHASES: dict[str, Phase] = {str(phase): phase for phase in Phase}
_MOST = 1 << 62
_LEAST = -_MOST


def _whole(value: Any) -> int:
    if type(value) is not int or not _LEAST < value < _MOST:
        _refuse()
    return value


def _time(value: Any) -> float:
    return _whole(value) / 1e6


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _MOST:
        _refuse()
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not isfinite(value):
        _refuse()
    return float(value)


def _text(value: Any) -> str:
    if type(value) is not str:
        _refuse()
    return value


def _frame(value: Any) -> Frame | None:
    if value is None:
        return None
    file, line, function = value
    return Frame(_text(file), _whole(line), _text(function))


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        _refuse()
    return value


def _numbered_lines(value: Any) -> tuple[tuple[int, str], ...]:
    return tuple((_whole(number), _text(text)) for number, text in value)


def _optional(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else check(value)


def _one_of(choices: Any) -> Callable[[Any], Any]:
    names = {str(choice): choice for choice in choices}
    return lambda value: names[value]


def _refuse() -> NoReturn:
    raise BadRow


_CHECKS: dict[Any, Callable[[Any], Any]] = {
    int: _whole,
    float: _number,
    str: _text,
    bool: _flag,
    int | None: _optional(_whole),
    str | None: _optional(_text),
    tuple[tuple[int, str], ...]: _numbered_lines,
    LeakKind: _one_of(get_args(LeakKind)),
    LeakHolder: _one_of(get_args(LeakHolder)),
    ExitReason: _one_of(ExitReason),
}
_ANNOTATIONS = {kind.__name__: kind for kind in Annotation.__subclasses__()}
_FIELDS = {
    kind: [(field.name, _CHECKS[field.type]) for field in fields(kind) if field.name != "time"]
    for kind in _ANNOTATIONS.values()
}
"""The fields of each annotation in the order of the file, with the check that a value must pass."""
