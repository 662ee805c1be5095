"""The sandbox of a traced script. The script writes to a scratch folder, which is deleted afterwards."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from legroom.observe.children.spawned_processes import CallWhenUnpickled, in_spawned_processes
from legroom.predict.sandbox.changes import refuse_changes
from legroom.predict.sandbox.landlock import forbid_writes_outside
from legroom.predict.sandbox.overlay import Overlay
from legroom.predict.sandbox.programs import refuse_programs
from legroom.predict.sandbox.redirect import redirect_files
from legroom.predict.sandbox.trackers import disable_trackers


class Sandbox:
    def __init__(self, folder: Path, own: Path | None = None) -> None:
        """Redirect writes for the rest of the process. `own` is a subfolder of `folder` that this process shares with
        its parent process. By default, a new subfolder is created, because several processes of the same estimate use
        `folder`.
        """
        self._folder = folder
        own = own or Path(tempfile.mkdtemp(dir=folder))
        temporary = own / "tmp"
        temporary.mkdir(exist_ok=True)
        for name in ("TMPDIR", "TEMP", "TMP"):
            os.environ[name] = str(temporary)
        tempfile.tempdir = None
        disable_trackers()
        sys.dont_write_bytecode = True
        self.overlay = Overlay(own / "files", scratch=folder)
        redirect_files(self.overlay)
        refuse_changes(self.overlay)
        self.is_enforced = forbid_writes_outside([str(folder), "/dev", "/proc"])
        """Whether the kernel denies writes that Python cannot redirect."""
        if not self.is_enforced:
            refuse_programs()
        # A process that `multiprocessing` spawns inherits no redirections, unlike a fork.
        self._in_spawned_processes = in_spawned_processes(CallWhenUnpickled(Sandbox, folder, own))
        self._in_spawned_processes.__enter__()

    def continue_in_fork(self) -> None:
        """Copy the written files for a fork, because other forks write to the same paths."""
        with self.overlay.plain():
            self.overlay.continue_in(self._folder / f"files-{os.getpid()}")

    @contextlib.contextmanager
    def located(self, path: Any, mode: str = "r") -> Iterator[Any]:
        """Yield the path of the real file for `path`, for code that opens the file without Python's functions. `mode` is
        `r`, `w` or `r+`, as for `open`. Inside the `with` block, calls are not redirected.
        """
        with self.overlay.plain():
            resolved = self.overlay.resolve(path)
            if mode == "r":
                yield self.overlay.location(resolved)
            else:
                yield self.overlay.prepare(resolved, keep_content=mode == "r+")
