"""Releases the tensors of a notebook cell that ran out of memory, so that the next cell can run.

After an error, IPython keeps the traceback for the debugger, and the traceback references every frame of the failed
call with all its tensors. Results of earlier cells (`Out`) may also be tensors. The user's variables are never deleted,
but listed with the command that deletes them.
"""

import os
import sys
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
from IPython.display import display

from legroom.diagnose.oom.recognize import is_oom
from legroom.memory.events import Holder
from legroom.observe.source.user_files import is_user_file
from legroom.show.common import notebook_html as html
from legroom.show.common.formatting import format_location
from legroom.train import free as freeing
from legroom.train.free import FreeResult
from legroom.units import format_size

_display: Any = display  # without types in some versions


class FailedCells:
    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self.was_shown = False
        """True if `%%legroom` recorded the cell, and has therefore already reported the error."""

    def free(self, *names: str, in_cell: bool = True) -> FreeResult:
        """Free memory as `legroom.free(*names)` does in a cell. `in_cell` is True if a cell is running."""
        # Otherwise, the file name marks the code as the user's, so that the variables of the notebook are searched.
        call = compile("free(*names)", "<legroom>" if in_cell else "<ipython-input-legroom>", "eval")
        result: FreeResult = eval(call, self._shell.user_ns, {"free": freeing.free, "names": names})
        return result

    def load(self) -> None:
        self._shell.events.register("post_run_cell", self.cell_ended)
        if not self._shell.custom_exceptions:  # the user's own handler has priority
            self._shell.set_custom_exc((torch.OutOfMemoryError,), self._short_traceback)

    def unload(self) -> None:
        self._shell.events.unregister("post_run_cell", self.cell_ended)
        if self._shell.custom_exceptions == (torch.OutOfMemoryError,):
            self._shell.set_custom_exc((), None)

    @staticmethod
    def _short_traceback(
        shell: Any, kind: type, error: BaseException, trace: Any, tb_offset: int | None = None
    ) -> None:
        """Show the traceback without the frames of torch and Legroom that a virtual GPU and `%%legroom` add."""
        shell.showtraceback((kind, error, _without_legroom(trace)), tb_offset=tb_offset)

    def cell_ended(self, result: Any) -> None:
        was_shown, self.was_shown = self.was_shown, False
        error = getattr(result, "error_in_exec", None)
        if error is None or not is_oom(error):
            return
        where, holders = ("", ()) if was_shown else _cause(error)
        before, _ = freeing.device_memory()
        freeing.clear_error(error)
        outputs = freeing.delete_device_outputs()
        freed = self.free(in_cell=False)
        _Release(where, holders, before, freed, outputs).show()


_HIDDEN = tuple(
    os.path.join(str(folder), "")
    for folder in (
        Path(__file__).parents[1],
        Path(__file__).resolve().parents[1],
        Path(torch.__file__).parent,
    )
)


def _without_legroom(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the frames of Legroom, torch and IPython's magics. The first frame is kept, because
    IPython itself omits the first frame when it shows a traceback.
    """
    entries = []
    while trace is not None:
        entries.append(trace)
        trace = trace.tb_next
    files = [entry.tb_frame.f_code.co_filename for entry in entries]
    last_magic = max((at for at, file in enumerate(files) if file == _MAGICS), default=0)
    kept = [
        entry
        for at, (entry, file) in enumerate(zip(entries, files, strict=True))
        if at == 0 or (at > last_magic and not file.startswith(_HIDDEN))
    ]
    result: TracebackType | None = None
    for entry in reversed(kept):
        result = TracebackType(result, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return result


_MAGICS = str(Path(__file__).with_name("magics.py"))


def _cause(error: BaseException) -> tuple[str, tuple[Holder, ...]]:
    """Return the line of the user's code that failed, and the variables that retained memory at the time of the error."""
    where, frame = "", None
    trace = error.__traceback__
    while trace is not None:
        if is_user_file(trace.tb_frame.f_code.co_filename):
            where = format_location(trace.tb_frame.f_code.co_filename, trace.tb_lineno)
            frame = trace.tb_frame
        trace = trace.tb_next
    try:
        return where, _holders(frame)
    finally:
        del frame, trace


def _holders(frame: FrameType | None) -> tuple[Holder, ...]:
    return freeing.holders_at(frame)[0] if frame is not None else ()


class _Release:
    def __init__(
        self, where: str, holders: tuple[Holder, ...], before: int, freed: FreeResult, outputs: list[str]
    ) -> None:
        self._holders = [(format_size(holder.bytes), holder.path, _location(holder)) for holder in holders]
        self._first = f"Out of memory at {where}." if where else ""
        left = freed.allocated_after
        released = max(before - left, 0)
        sentences = [f"Released {format_size(released)}."]
        if outputs:
            sentences.append(f"Deleted results of earlier cells: {', '.join(outputs)}.")
        if left:
            sentences.append(f"{format_size(left)} is still in use.")
            names = [name for name in map(_variable, freed.holders) if name]
            if names:
                kept = ", ".join(f"`{name}`" for name in names[:3])
                sentences.append(
                    f"Largest variables: {kept}. To delete variables that you no longer need, run `%legroom free NAME`."
                )
        self._last = " ".join(sentences)
        self._has_device = bool(before or left)

    def show(self) -> None:
        if not self._first and not self._has_device:
            return
        lines = [self._first] if self._first else []
        parts = [html.sentence(self._first, bold=True)]
        if self._holders:
            lines.append("Retained by:")
            lines += [f"{size:>11}  {path}  {where}".rstrip() for size, path, where in self._holders]
            parts.append(html.heading("Retained by", "when memory ran out; entries may overlap"))
            rows = ((size, html.code(path), html.text(where)) for size, path, where in self._holders)
            parts.append(html.table(rows, align="rll"))
        if self._has_device:
            lines.append(self._last)
            parts.append(html.sentence(self._last))
        plain = "\n".join(lines)
        _display({"text/plain": html.plain(plain), "text/html": html.block(*parts)}, raw=True)


def _location(holder: Holder) -> str:
    return format_location(holder.frame.file, holder.frame.line) if holder.frame is not None else ""


def _variable(holder: Holder) -> str:
    name = holder.path.partition(" ")[0].partition(".")[0].partition("[")[0]
    is_global = holder.frame is None or holder.frame.function.startswith("<")
    return name if name.isidentifier() and is_global and name in _user_names() else ""


def _user_names() -> dict[str, Any]:
    from legroom.observe.source.cells import shell

    names: dict[str, Any] = getattr(shell(), "user_ns", {})
    return names if names else vars(sys.modules["__main__"])
