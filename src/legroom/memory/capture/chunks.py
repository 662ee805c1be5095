"""A capture file being written: chunk after chunk, trimmed when it grows too large.

Every batch is flushed through the compressor to the operating system, so what was written survives the death of
the process. A chunk ends, where possible, at the end of a training step: what a storage is becomes known within
the step, so a chunk that is kept knows it of all that it holds.
"""

import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

from legroom.memory.capture.lines import FORMAT, VERSION, RowEncoder
from legroom.memory.capture.trim import Chunk, left_out, trim
from legroom.memory.events import Event, Holder, Oom, Step


class ChunkFile:
    """Takes events, keeps the file. Raises OSError as the disk does; `CaptureWriter` knows what to do then."""

    def __init__(self, path: Path, file: FileIO, *, run: dict[str, Any], max_bytes: int) -> None:
        self._path = path
        self._file = file
        self._header = {"format": FORMAT, "version": VERSION, "run": run}
        self._max_bytes = max_bytes
        self._encoder = RowEncoder()
        self._chunks: list[Chunk] = []
        self._chunk_with_peak: dict[tuple[str, int], int] = {}
        self._begin_chunk(0)

    @property
    def seconds(self) -> float:
        """The latest time of any event so far."""
        return self._encoder.time / 1e6

    @property
    def dropped(self) -> int:
        """How many events went when the file was trimmed."""
        return sum(left_out(chunk) for chunk in self._chunks)

    def write(self, events: Sequence[Event]) -> None:
        self._put(self._encoder.encode(events))
        if self._is_full(events[-1]):
            self._end_chunk()
            if self._chunks[-1].offset + self._chunks[-1].size > self._max_bytes * 3 // 4:
                self._trim()
            self._begin_chunk(self._chunks[-1].number + 1)

    def finish(self) -> None:
        """Close the file, with the mark of a good end."""
        self._put(['["e"]'])
        self._end_chunk()
        self._file.close()

    def drop(self) -> None:
        """Close the file as it is. It is unbuffered: this writes nothing, and a parent's file stays its own."""
        with suppress(OSError):
            self._file.close()

    def _is_full(self, latest: Event) -> bool:
        if isinstance(latest, Oom | Holder):
            return False  # an Oom and the holders that follow it belong together
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
                step_rows=b"",
            )
        )
        self._peaks_before = self._peaks()
        self._compressor = zlib.compressobj(1, zlib.DEFLATED, 31)
        self._put(encoder.begin_chunk({**self._header, "chunk": number, "holds": "events"}))
        # Where much is alive, its description must not come to outweigh the events.
        self._full = max(self._max_bytes // 8, 3 * (self._file.tell() - offset))

    def _end_chunk(self) -> None:
        encoder, chunk = self._encoder, self._chunks[-1]
        self._write_all(self._compressor.flush())
        chunk.size = self._file.tell() - chunk.offset
        chunk.events = encoder.events - chunk.first_event
        chunk.end = encoder.time
        chunk.ooms = encoder.ooms
        chunk.step_rows = zlib.compress("".join(f"{row}\n" for row in encoder.step_rows).encode())
        for key, peak in self._peaks().items():
            if peak > self._peaks_before.get(key, 0):
                self._chunk_with_peak[key] = chunk.number

    def _peaks(self) -> dict[tuple[str, int], int]:
        """Allocated before reserved: should they not all find room, the former matter more."""
        allocated, reserved = self._encoder.peak_allocated, self._encoder.peak_reserved
        return {
            **{("allocated", device): peak for device, peak in allocated.items()},
            **{("reserved", device): peak for device, peak in reserved.items()},
        }

    def _trim(self) -> None:
        """Replace the file, at once, by one without the chunks that matter least."""
        beside = self._path.with_name(f".{self._path.name}.{os.getpid()}.part")
        highest = [self._chunk_with_peak[key] for key in sorted(self._chunk_with_peak)]
        try:
            with open(self._path, "rb") as source, open(beside, "xb") as target:
                chunks = trim(
                    self._chunks,
                    highest=highest,
                    header=self._header,
                    max_bytes=self._max_bytes,
                    source=source,
                    target=target,
                )
            self._file.close()
            os.replace(beside, self._path)
        except OSError:
            with suppress(OSError):
                beside.unlink()
            raise
        self._chunks = chunks
        self._file = FileIO(self._path, "ab")

    def _put(self, rows: Sequence[str]) -> None:
        text = "\n".join(rows) + "\n"
        compressor = self._compressor
        self._write_all(compressor.compress(text.encode("ascii")) + compressor.flush(zlib.Z_SYNC_FLUSH))

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) or 0 :]
