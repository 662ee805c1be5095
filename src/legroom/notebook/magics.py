"""The magics of `%load_ext legroom`.

    %%legroom                 record this cell, and show its memory below it
    %%legroom NAME            the same, and assign the recording to the variable NAME
    %legroom free [NAMES]     free GPU memory; delete these variables first
    %legroom use SIZE|off     use a virtual GPU from now on

After an out-of-memory error in any cell, the tensors that only the failed cell retains are released (`failed_cells`).
"""

import ast
from typing import Any

from IPython.core.error import UsageError as MagicUsageError
from IPython.display import display

from legroom.errors import LegroomError
from legroom.notebook.failed_cells import FailedCells
from legroom.run.record import BlockRecording, record

_USAGE = "Usage: `%%legroom` records a cell, `%legroom free` frees GPU memory, and `%legroom use 8GiB` activates a virtual GPU."


_display: Any = display  # without types in some versions


class LegroomMagics:
    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._failures = FailedCells(shell)

    def load(self) -> None:
        self._shell.register_magic_function(self.legroom, "line_cell", "legroom")
        self._failures.load()

    def unload(self) -> None:
        for kind in ("line", "cell"):
            self._shell.magics_manager.magics[kind].pop("legroom", None)
        self._failures.unload()

    def legroom(self, line: str, cell: str | None = None) -> Any:
        __tracebackhide__ = True  # IPython omits this frame from tracebacks
        words = line.split()
        if cell is not None:
            if len(words) > 1 or not all(word.isidentifier() for word in words):
                raise MagicUsageError(
                    "`%%legroom` takes at most one argument, the name of the variable for the recording: `%%legroom recording`."
                )
            return self._record(cell, words[0] if words else "")
        try:
            match words:
                case ["free", *names]:
                    return self._failures.free(*names)
                case ["use", gpu]:
                    from legroom.observe.virtual.use import use

                    return use(None if gpu.lower() in ("off", "none") else gpu)
        except LegroomError as error:
            raise MagicUsageError(str(error)) from None
        raise MagicUsageError(_USAGE)

    def _record(self, cell: str, name: str) -> None:
        __tracebackhide__ = True
        codes = self._compiled(cell)
        recording = record()
        try:
            with recording:
                for code in codes:
                    exec(code, self._shell.user_global_ns, self._shell.user_ns)
        finally:
            if name:
                self._shell.user_ns[name] = recording
            self._show(recording)

    def _show(self, recording: BlockRecording) -> None:
        _display(recording)
        if recording.oom is not None and recording.oom.ended_run:
            self._failures.was_shown = True

    def _compiled(self, cell: str) -> list[Any]:
        # Line 1 is `%%legroom`, as in the notebook.
        shell = self._shell
        source = "\n" + shell.transform_cell(cell)
        number = max(len(shell.user_ns.get("In", ())) - 1, 1)  # `In` already contains this cell
        file = shell.compile.cache(source, number, raw_code=f"%%legroom\n{cell}\n# recorded")
        module = shell.transform_ast(shell.compile.ast_parse(source, filename=file))
        body, last = module.body, []
        if body and isinstance(body[-1], ast.Expr):
            body, last = body[:-1], body[-1:]  # the value of the last expression is shown, as in every cell
        codes = [shell.compile(ast.Module(body, []), file, "exec")] if body else []
        return [*codes, *(shell.compile(ast.Interactive([each]), file, "single") for each in last)]


_loaded: dict[int, LegroomMagics] = {}


def load(shell: Any) -> None:
    magics = _loaded[id(shell)] = LegroomMagics(shell)
    magics.load()


def unload(shell: Any) -> None:
    magics = _loaded.pop(id(shell), None)
    if magics is not None:
        magics.unload()
