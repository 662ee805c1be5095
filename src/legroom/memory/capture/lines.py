"""The format of a capture file: encodes events as lines of JSON, and decodes them.

A capture is a series of chunks. A chunk is one gzip member of JSON lines and does not depend on other chunks.

```
{"format": "legroom capture", "version": 2, ...}    the header
["s", device, stream, category, phase, module, file, line, function, op]
                                                    a site that allocates; sites are numbered from 0
["l", time, id, bytes, block bytes, step, site]     a storage that is alive at the start of the chunk
["r", device, bytes]                                reserved memory at the start of the chunk
["b", number of "l" lines]                          the events start here
["a", time, id, bytes, block bytes - bytes, step, site]     Alloc
["f", time, id]                                             Free
["t", id, category]                                         Tag
["g", ...] ["p", ...] ["o", ...] ["h", ...]                 SegmentChange, Step, Oom, Holder: their fields in order
["n", time, class name, ...]                                Annotation: its other fields in order
["e"]                                                       end mark: the capture is complete
```

Times are in whole microseconds. Times and ids are stored as differences, so the lines of consecutive training steps
are similar and compress to about 4 bytes per event. The time of an "a" or "f" line is relative to the previous "a" or
"f" line, or to the time in the header. The id of an "a" line is relative to the previous "a" line, or to 0. The id of
an "f" or "t" line counts back from the last "a" line.

A capture may come from an untrusted source, so every value is checked when it is read.
"""

# ruff: noqa: UP031  (percent formatting is as fast as an f-string, and rejects values that are not numbers)
import json
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, fields
from math import isfinite
from typing import Any, NoReturn, get_args

from legroom.memory.annotations import ExitReason
from legroom.memory.detected_leak import LeakHolder, LeakKind
from legroom.memory.event_base import Annotation, Category, Frame, Phase
from legroom.memory.events import Alloc, Event, Free, Holder, Oom, SegmentChange, Step, Tag

FORMAT = "legroom capture"
VERSION = 3

Site = tuple[int, int, Category, Phase, str, Frame | None, str]
"""A site: device, stream, category, phase, module, frame and operation."""


class LineEncoder:
    """Encodes events as lines, and tracks the live storages that every chunk lists at its start."""

    def __init__(self) -> None:
        self.events = 0
        self.time = 0
        self.allocated: defaultdict[int, int] = defaultdict(int)
        self.reserved: defaultdict[int, int] = defaultdict(int)
        self.peak_allocated: defaultdict[int, int] = defaultdict(int)
        self.peak_reserved: defaultdict[int, int] = defaultdict(int)
        self._step_lines = _CompressedLines()
        """The Step events of this chunk, which stay in the file when the chunk is dropped."""
        self.ooms = 0
        self._live: dict[int, Alloc] = {}
        self._tags: dict[int, Category] = {}
        self._sites: dict[Site, int] = {}
        self._last_time = 0
        self._last_id = 0

    def begin_chunk(self, header: dict[str, Any]) -> list[str]:
        """Return the first lines of a new chunk: the header, the sites and the live storages."""
        self._step_lines, self.ooms = _CompressedLines(), 0
        self._sites = {}
        self._last_time, self._last_id = self.time, 0
        lines = [to_json({**header, "first_event": self.events, "time": self.time})]
        for alloc in self._live.values():
            category = self._tags.get(alloc.id, alloc.category)
            key = (alloc.device, alloc.stream, category, alloc.phase, alloc.module, alloc.frame, alloc.op)
            site = self._sites.get(key)
            if site is None:
                site = self._declare(key, lines.append)
            numbers = (round(alloc.time * 1e6), alloc.id, alloc.bytes, alloc.block_bytes, alloc.step, site)
            lines.append('["l",%d,%d,%d,%d,%d,%d]' % numbers)
        lines += (to_json(["r", device, size]) for device, size in self.reserved.items() if size)
        lines.append(to_json(["b", len(self._live)]))
        return lines

    def encode(self, events: Sequence[Event]) -> list[str]:
        # This loop runs for every allocation of a run, so it is optimized for speed.
        lines: list[str] = []
        add = lines.append
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
                    self._remove(id)
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
                    self._remove(id)
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
        return lines

    def _encode_rare(
        self, event: SegmentChange | Step | Oom | Holder | Annotation, add: Callable[[str], None]
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
        line = to_json([_LETTERS[type(event)], now, *event[1:]])
        add(line)
        if isinstance(event, SegmentChange):
            reserved = self.reserved[event.device] + event.bytes
            self.reserved[event.device] = reserved
            self.peak_reserved[event.device] = max(self.peak_reserved[event.device], reserved)
        elif isinstance(event, Step):
            self._step_lines.add(line)
        elif isinstance(event, Oom):
            self.ooms += 1

    def finished_step_lines(self) -> bytes:
        """Return the compressed Step events of this chunk.

        This method can be called once, at the end of the chunk.
        """
        return self._step_lines.finish()

    def _declare(self, key: Site, add: Callable[[str], None]) -> int:
        number = self._sites[key] = len(self._sites)
        *where, frame, op = key
        add(to_json(["s", *where, *(frame or (None, None, None)), op]))
        return number

    def _remove(self, id: int) -> None:
        freed = self._live.pop(id)
        self.allocated[freed[4]] -= freed[3]
        if id in self._tags:
            del self._tags[id]


class _CompressedLines:
    """Lines that are compressed as they are added, because a chunk may contain many thousand steps."""

    def __init__(self) -> None:
        self._compressor = zlib.compressobj()
        self._data = bytearray()

    def add(self, line: str) -> None:
        self._data += self._compressor.compress(f"{line}\n".encode())

    def finish(self) -> bytes:
        return bytes(self._data + self._compressor.flush())


_LETTERS: dict[type[Event], str] = {SegmentChange: "g", Step: "p", Oom: "o"}


def to_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


class InvalidLine(Exception):  # noqa: N818  (internal; the reader catches it)
    """Raised for a line that the encoder cannot have written."""


class LineDecoder:
    def __init__(self, time: int, known: dict[Site, Site], *, state_first: bool) -> None:
        """`known` contains the sites of all chunks, so that equal sites share one object."""
        self.time = time
        """The time at the start of the chunk, in microseconds."""
        self.live: dict[int, Alloc] = {}
        self.reserved: dict[int, int] = {}
        self.begun = not state_first
        """True if `live` and `reserved`, the state at the start of the chunk, are complete."""
        self.ended = False
        self._known = known
        self._sites: list[Site] = []
        self._last_time = time
        self._last_id = 0

    def decode(self, rows: Sequence[Any], into: list[Event]) -> None:
        """Append the events of `rows` to `into`. If a row is invalid, only the events before it are appended."""
        remaining = iter(rows)
        try:
            if not self.begun:
                self._decode_state(remaining)
            self._decode_events(remaining, into)
        except (TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise InvalidLine from error

    def _decode_state(self, rows: Iterator[Any]) -> None:
        for row in rows:
            match row:
                case ["s", *_]:
                    self._decode_site(row)
                case ["l", time, id, size, block, step, site]:
                    where = self._sites[_count(site)]
                    device, stream, category, phase, module, frame, op = where
                    self.live[_integer(id)] = Alloc(
                        _time(time), id, _count(size), _count(block), device, stream,
                        category, phase, _integer(step), module, frame, op,
                    )  # fmt: skip
                case ["r", device, size]:
                    self.reserved[_integer(device)] = _integer(size)
                case ["b", number]:
                    if number != len(self.live):
                        raise InvalidLine
                    self.begun = True
                    return
                case _:
                    raise InvalidLine

    def _decode_events(self, rows: Iterator[Any], into: list[Event]) -> None:
        add = into.append
        new = tuple.__new__  # three times as fast as calling Alloc
        sites = self._sites
        last_time, last_id = self._last_time, self._last_id
        for row in rows:
            letter = row[0]
            if letter == "a":
                _, delta, age, size, rest, step, site = row
                if not (
                    type(delta) is type(age) is type(size) is type(rest) is type(step) is type(site) is int
                ):
                    raise InvalidLine
                last_time += delta
                last_id += age
                block = size + rest
                if not (
                    _MIN < last_time < _MAX
                    and _MIN < last_id < _MAX
                    and 0 <= size < _MAX
                    and 0 <= block < _MAX
                    and _MIN < step < _MAX
                    and site >= 0
                ):
                    raise InvalidLine
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
                    raise InvalidLine
                last_time += delta
                id = last_id - age
                if not (_MIN < last_time < _MAX and _MIN < id < _MAX):
                    raise InvalidLine
                add(new(Free, (last_time / 1e6, id)))
            elif letter == "t":
                _, age, category_text = row
                add(Tag(_integer(last_id - _integer(age)), _CATEGORIES[category_text]))
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
            _integer(device),
            _integer(stream),
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
            return SegmentChange(_time(time), _integer(device), _integer(size))
        case ["p", time, step, seconds, *sizes]:
            return Step(_time(time), _integer(step), _number(seconds), *map(_integer, sizes))
        case ["o", time, *sizes, step, phase, module, frame, op, message]:
            where = (_integer(step), _PHASES[phase], _text(module), _frame(frame), _text(op), _text(message))
            return Oom._make((_time(time), *map(_integer, sizes), *where))
        case ["h", path, size, count, frame, *parts] if len(parts) <= 2:
            return Holder(_text(path), _integer(size), _integer(count), _frame(frame), *map(_integer, parts))
        case ["n", time, name, *values]:
            kind = _ANNOTATIONS[name]
            if not _REQUIRED[kind] <= len(values) <= len(_FIELDS[kind]):
                raise InvalidLine
            checked = {
                name: check(value) for (name, check), value in zip(_FIELDS[kind], values, strict=False)
            }
            return kind(time=_time(time), **checked)
    raise InvalidLine


_CATEGORIES: dict[str, Category] = {str(category): category for category in Category}
_PHASES: dict[str, Phase] = {str(phase): phase for phase in Phase}
_MAX = 1 << 62
_MIN = -_MAX


def _integer(value: Any) -> int:
    if type(value) is not int or not _MIN < value < _MAX:
        _reject()
    return value


def _time(value: Any) -> float:
    return _integer(value) / 1e6


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _MAX:
        _reject()
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not isfinite(value):
        _reject()
    return float(value)


def _text(value: Any) -> str:
    if type(value) is not str:
        _reject()
    return value


def _frame(value: Any) -> Frame | None:
    if value is None:
        return None
    file, line, function = value
    return Frame(_text(file), _integer(line), _text(function))


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        _reject()
    return value


def _numbered_lines(value: Any) -> tuple[tuple[int, str], ...]:
    return tuple((_integer(number), _text(text)) for number, text in value)


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(_text(text) for text in value)


def _integers(value: Any) -> tuple[int, ...]:
    return tuple(_integer(number) for number in value)


def _optional(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else check(value)


def _one_of(choices: Any) -> Callable[[Any], Any]:
    names = {str(choice): choice for choice in choices}
    return lambda value: names[value]


def _reject() -> NoReturn:
    raise InvalidLine


_CHECKS: dict[Any, Callable[[Any], Any]] = {
    int: _integer,
    float: _number,
    str: _text,
    bool: _flag,
    int | None: _optional(_integer),
    str | None: _optional(_text),
    bool | None: _optional(_flag),
    tuple[str, ...]: _texts,
    tuple[str, ...] | None: _optional(_texts),
    tuple[int, ...]: _integers,
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
"""The fields of each annotation in the order of the file, each with the check that a value must pass."""
_REQUIRED = {
    kind: sum(each.name != "time" and each.default is MISSING for each in fields(kind))
    for kind in _ANNOTATIONS.values()
}
"""The number of fields without a default value. Captures of older versions lack some of the other fields."""
