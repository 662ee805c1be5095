"""A test whose GPU memory is limited and measured.

The test runs on this machine's GPU if that GPU is large enough. Otherwise, the test runs on a virtual GPU of the
given size. In both cases, the allocator fails when the limit is reached. Code that recovers from out-of-memory
errors, such as `legroom.Guard`, therefore passes if it can run within the limit. Memory that is allocated before the
test does not count.
"""

import gc
import hashlib
import linecache
import re
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from legroom.diagnose.oom.recognize import is_oom
from legroom.diagnose.report.run_figures import figures_from_capture
from legroom.gpus.catalog import GpuSpec, find_gpu, parse_gpus
from legroom.memory.capture.capture import SUFFIX, read_capture
from legroom.observe.dispatch.storages import storage_of
from legroom.observe.holders.retained_size import RetainedStorages
from legroom.observe.leaks.live_objects import StorageTracker, find_live_objects, other_views
from legroom.observe.leaks.search.suspects import HolderFinder
from legroom.observe.tensor_reference import TensorReference
from legroom.observe.virtual.gpu import VirtualGPU
from legroom.run.record import BlockRecording, record
from legroom.show.common.formatting import format_location
from legroom.show.common.html_page import write_new
from legroom.show.report.html_report.page_writer import page
from legroom.train import free as freeing
from legroom.train.sizes.capacity import memory_fraction
from legroom.units import format_size

TOP_LINES = 3
MAX_CODE = 60
DEFAULT_GPU = "8GiB"


class MemoryTest:
    def __init__(self, name: str, *, with_leaks: bool, is_measured: bool) -> None:
        """`name` is the ID of the test.

        With `with_leaks`, memory that is still allocated after the test is a failure. Without `is_measured`, the test
        runs on a virtual GPU, but its memory is not recorded.
        """
        self.name = name
        self.with_leaks = with_leaks
        self.has_failed = False
        self.virtual_gpu: VirtualGPU | None = None
        self._is_measured = is_measured
        self._limit: int | None = None
        self._before = 0
        self._recording: BlockRecording | None = None
        self._is_recording = False
        self._since_call: BlockRecording | None = None
        self._storages = StorageTracker()
        self._exit = ExitStack()

    # --- phases

    def start(self, gpu: str | int | None, *, is_virtual: bool) -> None:
        """Limit the memory to `gpu`, a size or a name, and start the recording. With `is_virtual`, never use a real
        GPU."""
        value = DEFAULT_GPU if gpu is None else gpu
        specs = parse_gpus(value) if isinstance(value, str) else [find_gpu(value)]
        self._limit = None if gpu is None else specs[0].usable
        self._before = 0
        if self._use_current_gpu(specs, is_limited=gpu is not None, is_virtual=is_virtual):
            self.virtual_gpu = VirtualGPU.active()
        else:
            self.virtual_gpu = self._exit.enter_context(VirtualGPU(*specs))
        if self._is_measured:
            self._recording = record(leaks=False)
            self._recording.__enter__()
            self._is_recording = True

    def begin_call(self) -> None:
        """Record the memory of the fixtures, which is not a leak of the test."""
        if self.with_leaks:
            gc.collect()
            self._storages.update(_device_tensors(), set(), 1)
            self._since_call = record(leaks=False)
            self._since_call.__enter__()

    def explain(self, error: BaseException) -> str | None:
        if self._recording is None or not self._is_recording or not is_oom(error):
            return None
        self._stop(error)
        return "\n".join(self._oom_lines(str(error)))

    def finish(self) -> str | None:
        """Stop the recording, and return a message if memory of the test is still allocated."""
        leaked = None
        if self.with_leaks and self._since_call is not None and not self.has_failed and self._is_recording:
            freeing.release()
            self._stop_since_call()
            lines = self._since_call.by_line("end", existing=False)
            if lines:
                leaked = "\n".join(self._leak_lines(lines))
        self._stop(None)
        return leaked

    def close(self) -> None:
        self._stop(None)
        self._exit.close()
        self.virtual_gpu = None

    def _stop(self, error: BaseException | None) -> None:
        self._stop_since_call()
        if self._recording is not None and self._is_recording:
            self._is_recording = False
            self._recording.__exit__(type(error) if error else None, error, None)

    def _stop_since_call(self) -> None:
        if self._since_call is not None:
            self._since_call.__exit__(None, None, None)

    def _use_current_gpu(self, specs: Sequence[GpuSpec], *, is_limited: bool, is_virtual: bool) -> bool:
        """Limit the memory of the current GPUs, which may be virtual, and return False if they are missing or too
        small.
        """
        if not torch.cuda.is_available() or (is_virtual and VirtualGPU.active() is None):
            return False
        if torch.cuda.device_count() < len(specs):
            return False
        totals = [torch.cuda.mem_get_info(index)[1] for index in range(len(specs))]
        if any(spec.usable > total for spec, total in zip(specs, totals, strict=True)):
            return False
        freeing.release()
        self._before = torch.cuda.memory_allocated(0)
        if is_limited:
            for index, (spec, total) in enumerate(zip(specs, totals, strict=True)):
                fraction = memory_fraction(torch.device("cuda", index))
                self._exit.callback(torch.cuda.set_per_process_memory_fraction, fraction, index)
                allowed = torch.cuda.memory_reserved(index) + spec.usable
                torch.cuda.set_per_process_memory_fraction(min(1.0, (allowed + 0.5) / total), index)
        return True

    # --- results

    def result(self) -> dict[str, Any] | None:
        """Return the peak and the lines that allocated the most memory as JSON data, or None if nothing was measured."""
        if self._recording is None or self._is_recording:
            return None
        peak = max(self._recording.peak - self._before, 0)
        return {
            "test": self.name,
            "peak": peak,
            "limit": self._limit,
            "lines": _largest(self._recording.by_line()) if peak else [],
        }

    def write(self, folder: Path) -> None:
        """Write the capture and the page of the test. A capture or a page of an earlier run is overwritten."""
        assert self._recording is not None
        path = folder / f"{file_name(self.name)}{SUFFIX}"
        self._recording.save(path, force=True)
        figures = figures_from_capture(read_capture(path), path=str(path))
        write_new(path.with_suffix(".html"), page(figures), force=True)

    def _oom_lines(self, error: str) -> Iterator[str]:
        assert self._recording is not None
        oom = self._recording.oom
        if oom is None:  # the failure is in a child process, or the allocator's history does not contain it
            yield f"The test ran out of GPU memory: {error}"
        else:
            event = oom.event
            needed = event.reserved - event.cached + oom.block - self._before
            allowed = self._limit if self._limit is not None else event.limit
            yield (
                f"The test needs at least {format_size(needed)} of GPU memory, but only {format_size(allowed)} is allowed. "
                f"Tried to allocate {format_size(oom.block)} at {_location(event.frame)}."
            )
        rows = _largest(self._recording.by_line())
        if rows:
            yield "Largest lines:"
            yield from _table(rows)

    def _leak_lines(self, lines: list[dict[str, Any]]) -> Iterator[str]:
        yield f"{format_size(sum(line['bytes'] for line in lines))} of GPU memory is still allocated after the test."
        yield "Allocated at:"
        yield from _table(_largest(lines))
        holders = self._holders()
        if holders:
            yield "Retained by:"
            yield from holders
        else:
            yield "Legroom found no variable that retains this memory. Running the same code with `legroom run` may find the variable."

    def _holders(self) -> list[str]:
        found = HolderFinder().find(self._targets(), {})
        lines = []
        for path, *_ in found[:TOP_LINES]:
            where = f"  {format_location(path.file, path.line or None)}" if path.file else ""
            lines.append(
                f"  {path.name or 'an unnamed object'}{f' ({path.described})' if path.described else ''}{where}"
            )
        return lines

    def _targets(self) -> list["weakref.ref[torch.Tensor]"]:
        """Return the tensors of the test and all views of them, because a variable may retain only a view."""
        tensors = _device_tensors()
        created = self._storages.update(tensors, set(), 2).get(2, [])
        return _by_retained_size([*created, *(view for view, _ in other_views(tensors, created))])


def _device_tensors() -> list[torch.Tensor]:
    found = [each for each in find_live_objects().tensors if each.device.type == "cuda"]
    gradients = [each.grad for each in found if each.is_leaf and each.grad is not None]
    known = set(map(id, found))
    return [*found, *(each for each in gradients if id(each) not in known)]


def _by_retained_size(tensors: list[torch.Tensor]) -> list["weakref.ref[torch.Tensor]"]:
    """Return weak references to the tensors, sorted by the memory that they retain directly or through their graphs."""
    retained = RetainedStorages(_measure)
    sizes = {id(tensor): sum(retained.by(tensor).values()) for tensor in tensors}
    tensors.sort(key=lambda tensor: -sizes[id(tensor)])
    return [TensorReference(tensor) for tensor in tensors]


def _measure(tensor: torch.Tensor) -> tuple[int, int] | None:
    storage = storage_of(tensor) if tensor.device.type == "cuda" else None
    return None if storage is None else (storage._cdata, storage.nbytes())


def file_name(test: str) -> str:
    """Return a file name for a test.

    The name for a test with parameters ends with a hash, because parameters may contain any character.
    """
    plain = re.sub(r"[^\w.-]+", "-", test.partition("[")[0])[-120:]
    return f"{plain}-{hashlib.sha256(test.encode()).hexdigest()[:8]}" if "[" in test else plain


# --- text


def summary_lines(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    sizes = [format_size(result["peak"]) for result in results]
    limits = [f"of {format_size(result['limit'])}" if result["limit"] else "" for result in results]
    for result, size, limit in zip(results, sizes, limits, strict=True):
        yield f"{size:>{max(map(len, sizes))}} {limit:<{max(map(len, limits))}}  {result['test']}"
        yield from _table(result["lines"])


def _largest(lines: Sequence[dict[str, Any]]) -> list[list[Any]]:
    """Return the bytes, categories, location and code of the lines that allocated the most memory."""
    by_line: dict[tuple[str | None, int | None], list[dict[str, Any]]] = {}
    for line in lines:
        by_line.setdefault((line["file"], line["line"]), []).append(line)
    rows = [
        [
            sum(part["bytes"] for part in parts),
            ", ".join(dict.fromkeys(str(part["category"]) for part in parts)),
            format_location(file, number),
            linecache.getline(file or "", number or 0).strip()[:MAX_CODE],
        ]
        for (file, number), parts in by_line.items()
    ]
    return sorted(rows, key=lambda row: -row[0])[:TOP_LINES]


def _table(rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    widths = [max((len(row[column]) for row in rows), default=0) for column in (1, 2)]
    for size, categories, where, code in rows:
        line = f"  {format_size(size):>11}  {categories:<{widths[0]}}  {where:<{widths[1]}}  {code}"
        yield line.rstrip()


def _location(frame: Any) -> str:
    return format_location(frame.file, frame.line) if frame is not None else "an unknown line"
