"""Writes the chunks of a capture file, and trims the file when it grows too large.

Every batch of events is flushed to the operating system, so the batch survives if the process is killed. If possible,
a chunk ends at the end of a training step, because the categories of the storages are known then.
"""

import errno
import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

from legroom.memory.capture.lines import FORMAT, VERSION, LineEncoder
from legroom.memory.capture.trim import Chunk, dropped_events, trim
from legroom.memory.events import Event, Holder, Oom, Step


class ChunkFile:
    """A capture file open for writing. The methods raise OSError if a write fails."""

    def __init__(self, path: Path, file: FileIO, *, run: dict[str, Any], max_bytes: int) -> None:
        self._path = path
        self._file = file
        self._header = {"format": FORMAT, "version": VERSION, "run": run}
        self._max_bytes = max_bytes
        self._encoder = LineEncoder()
        self._chunks: list[Chunk] = []
        self._chunk_with_peak: dict[tuple[str, int], int] = {}
        self._begin_chunk(0)

    @property
    def seconds(self) -> float:
        return self._encoder.time / 1e6

    @property
    def dropped(self) -> int:
        return sum(dropped_events(chunk) for chunk in self._chunks)

    def write(self, events: Sequence[Event]) -> None:
        self._write_lines(self._encoder.encode(events))
        if self._is_full(events[-1]):
            self._end_chunk()
            if self._chunks[-1].offset + self._chunks[-1].size > self._max_bytes * 3 // 4:
                self._trim()
            self._begin_chunk(self._chunks[-1].number + 1)

    def finish(self) -> None:
        self._write_lines(['["e"]'])
        self._end_chunk()
        self._file.close()

    def abandon(self) -> None:
        """Close the file without writing to it. The file is unbuffered, so closing it flushes no data."""
        with suppress(OSError):
            self._file.close()

    def _is_full(self, latest: Event) -> bool:
        if isinstance(latest, Oom | Holder):
            return False  # the holders of an Oom follow it in the same chunk
        size = self._file.tell() - self._chunks[-1].offset
        return size > (self._full // 2 if isinstance(latest, Step) else self._full)

    def _begin_chunk(self, number: int) -> None:
        encoder, offset = self._encoder, self._file.tell()
        self._chunks.append(
            Chunk(
                number=number,
                offset=offset,
                size=0,
                first_event=encoder.events,
                events=0,
                begin=encoder.time,
                end=encoder.time,
                step_lines=b"",
            )
        )
        self._peaks_before = self._peaks()
        self._compressor = zlib.compressobj(1, zlib.DEFLATED, 31)
        self._write_lines(encoder.begin_chunk({**self._header, "chunk": number, "holds": "events"}))
        # If many storages are alive, the chunk is longer, so that it consists mostly of events.
        self._full = max(self._max_bytes // 8, 3 * (self._file.tell() - offset))

    def _end_chunk(self) -> None:
        encoder, chunk = self._encoder, self._chunks[-1]
        self._write_all(self._compressor.flush())
        chunk.size = self._file.tell() - chunk.offset
        chunk.events = encoder.events - chunk.first_event
        chunk.end = encoder.time
        chunk.ooms = encoder.ooms
        chunk.step_lines = encoder.finished_step_lines()
        for key, peak in self._peaks().items():
            if peak > self._peaks_before.get(key, 0):
                self._chunk_with_peak[key] = chunk.number

    def _peaks(self) -> dict[tuple[str, int], int]:
        allocated, reserved = self._encoder.peak_allocated, self._encoder.peak_reserved
        return {
            **{("allocated", device): peak for device, peak in allocated.items()},
            **{("reserved", device): peak for device, peak in reserved.items()},
        }

    def _trim(self) -> None:
        """Remove the least important chunks by atomically replacing the file."""
        trimmed = self._path.with_name(f".{self._path.name}.{os.getpid()}.part")
        highest = [self._chunk_with_peak[key] for key in sorted(self._chunk_with_peak)]
        try:
            with open(self._path, "rb") as source, open(trimmed, "xb") as target:
                chunks = trim(
                    self._chunks,
                    highest=highest,
                    header=self._header,
                    max_bytes=self._max_bytes,
                    source=source,
                    target=target,
                )
            self._file.close()
            os.replace(trimmed, self._path)
        except OSError:
            with suppress(OSError):
                trimmed.unlink()
            raise
        self._chunks = chunks
        self._file = FileIO(self._path, "ab")

    def _write_lines(self, lines: Sequence[str]) -> None:
        text = "\n".join(lines) + "\n"
        compressor = self._compressor
        self._write_all(compressor.compress(text.encode("ascii")) + compressor.flush(zlib.Z_SYNC_FLUSH))

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = self._file.write(view)
            if not written:  # otherwise the file would be trimmed forever
                raise OSError(errno.EIO, "No data could be written to the file")
            view = view[written:]
