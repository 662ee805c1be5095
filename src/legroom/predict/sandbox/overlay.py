"""A file system overlay in Python. A script writes to a scratch folder and reads its own changes.

The user's files are the lower layer and never change. Everything that the script writes goes to the upper layer, a folder with
the same paths below it: `/home/me/log.csv` becomes `UPPER/home/me/log.csv`. Deleted and renamed files of the lower layer
are recorded in memory. Only calls through Python are redirected (`open`, `os`, and everything in the standard library
that is built on them). If the kernel supports it, `landlock` denies all other writes.
"""

import builtins
import contextlib
import errno
import functools
import io
import os
import shutil
import sqlite3
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_PASSED = ("/dev", "/proc", "/sys")
"""Folders without files of the user: devices, shared memory, the kernel's own folders."""

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Overlay:
    """The two layers, and the paths of the lower layer that the script deleted or moved."""

    def __init__(self, upper: Path, *, scratch: Path) -> None:
        self.upper = os.path.realpath(upper)
        self._passed = (os.path.realpath(scratch), *_PASSED)
        os.makedirs(self.upper, exist_ok=True)
        self._deleted: set[str] = set()
        self._moved: dict[str, str] = {}
        """A path that was renamed to → the path in the lower layer that has its content."""
        self._threads = threading.local()
        self._directory: str | None = None
        """The current directory, if the script changed to one that is only in the upper layer."""

    @contextlib.contextmanager
    def plain(self) -> Iterator[None]:
        """Do not redirect calls of this thread inside the block."""
        self._threads.depth = getattr(self._threads, "depth", 0) + 1
        try:
            yield
        finally:
            self._threads.depth -= 1

    @property
    def is_plain(self) -> bool:
        return bool(getattr(self._threads, "depth", 0))

    def continue_in(self, upper: Path) -> None:
        """Use a copy of the upper layer from now on. This is for a fork, because other forks write to the same
        paths."""
        old, self.upper = self.upper, os.path.realpath(upper)
        shutil.copytree(old, self.upper, symlinks=True, dirs_exist_ok=True)
        if self._directory is not None:
            os.chdir(self._upper(self._directory))

    def allow(self, path: str) -> bool:
        """Whether a path is not redirected: it is in the scratch folder, or not a file of the user."""
        return path in self._passed or path.startswith(tuple(f"{folder}/" for folder in self._passed))

    # --- where a path is

    def absolute(self, path: Any) -> str:
        """The absolute path, with links in its folders resolved."""
        text = os.fsdecode(path)
        if self._directory is not None and not os.path.isabs(text):
            text = os.path.join(self._directory, text)
        parent, name = os.path.split(os.path.abspath(text))
        return os.path.join(_real_folder(parent), name)

    def find(self, path: str) -> str | None:
        """The location of the content of an absolute path; None if it does not exist."""
        upper = self._upper(path)
        if os.path.lexists(upper):
            return upper
        lower = self._lower(path)
        return lower if lower is not None and os.path.lexists(lower) else None

    def names(self, path: str) -> dict[str, str]:
        """Maps the names in a directory to the locations of their content."""
        entries: dict[str, str] = {}
        lower = self._lower(path)
        if lower is not None and os.path.isdir(lower):
            for name in os.listdir(lower):
                if self._lower(os.path.join(path, name)) is not None:
                    entries[name] = os.path.join(lower, name)
        upper = self._upper(path)
        if os.path.isdir(upper):
            entries.update((name, os.path.join(upper, name)) for name in os.listdir(upper))
        for target, source in self._moved.items():
            if os.path.dirname(target) == path:
                entries[os.path.basename(target)] = source
        return entries

    def is_changed(self, path: str) -> bool:
        """Whether a directory has entries that were written, moved or deleted."""
        return (
            os.path.isdir(self._upper(path))
            or any(os.path.dirname(each) == path for each in (*self._deleted, *self._moved))
            or self._lower(path) != path
        )

    def _upper(self, path: str) -> str:
        return self.upper + path

    def _lower(self, path: str) -> str | None:
        """The path in the lower layer; None if the script deleted it or a folder above it."""
        below = path
        while True:
            if below in self._moved:
                return self._moved[below] + path[len(below) :]
            if below in self._deleted:
                return None
            parent = os.path.dirname(below)
            if parent == below:
                return path
            below = parent

    # --- changes

    def prepare(self, path: str, *, keep_content: bool) -> str:
        """Return the upper path of a file that is about to be written. If `keep_content` is set, it has the file's
        content."""
        upper = self._upper(path)
        if not os.path.lexists(upper):
            self._make_parents(path)
            lower = self._lower(path)
            if keep_content and lower is not None and os.path.isfile(lower):
                shutil.copyfile(lower, upper)
        self._moved.pop(path, None)
        self._deleted.discard(path)
        return upper

    def make_directory(self, path: str, mode: int) -> None:
        if self.find(path) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        self._make_parents(path)
        os.mkdir(self._upper(path), mode)

    def remove(self, path: str) -> None:
        """Delete a file or an empty directory from both layers, as the script sees them."""
        upper = self._upper(path)
        if os.path.isdir(upper) and not os.path.islink(upper):
            shutil.rmtree(upper)
        elif os.path.lexists(upper):
            os.remove(upper)
        self._moved.pop(path, None)
        if os.path.lexists(path):
            self._deleted.add(path)

    def rename(self, source: str, target: str) -> None:
        """Move a file or a directory, as the script sees it. Content of the lower layer is not copied."""
        lower, upper = self._lower(source), self._upper(source)
        was_upper = os.path.lexists(upper)
        holding = self._upper(os.path.dirname(source)) + f"/.moved-{os.getpid()}"
        if was_upper:
            os.rename(upper, holding)
        if self.find(target) is not None:
            self.remove(target)
        self._make_parents(target)
        below = [(path, origin) for path, origin in self._moved.items() if path.startswith(source + "/")]
        gone = [path for path in self._deleted if path.startswith(source + "/")]
        if lower is not None and os.path.lexists(lower):
            self._moved[target] = lower
        if was_upper:
            os.rename(holding, self._upper(target))
        for path, origin in below:
            del self._moved[path]
            self._moved[target + path[len(source) :]] = origin
        for path in gone:
            self._deleted.add(target + path[len(source) :])
        self._moved.pop(source, None)
        if os.path.lexists(source):
            self._deleted.add(source)
        if target not in self._moved:
            self._deleted.discard(target)

    def change_directory(self, path: str) -> str:
        """The directory to change to."""
        found = self.find(path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        self._directory = None if found == path else path
        return found

    @property
    def directory(self) -> str | None:
        return self._directory

    def _make_parents(self, path: str) -> None:
        parent = os.path.dirname(path)
        found = self.find(parent)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        if not os.path.isdir(found):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        os.makedirs(self._upper(parent), exist_ok=True)


@functools.lru_cache(maxsize=4096)
def _real_folder(path: str) -> str:
    return os.path.realpath(path)


def install(overlay: Overlay) -> None:
    """Redirect `open` and the functions of `os` for the rest of this process. Forks inherit it."""
    plain = overlay.plain

    def resolve(path: Any) -> str | None:
        """The absolute path, or None for one that is not redirected."""
        if overlay.is_plain or not isinstance(path, str | bytes | os.PathLike):
            return None
        with plain():
            absolute = overlay.absolute(path)
            return None if overlay.allow(absolute) else absolute

    def redirect(name: str, how: Callable[..., Any]) -> None:
        """Replace `os.NAME`: `how(plain_function, absolute_path, *arguments)` handles paths of the user."""
        function = getattr(os, name, None)
        if function is None:
            return

        @functools.wraps(function)
        def call(path: Any = ".", *args: Any, **options: Any) -> Any:
            absolute = resolve(path) if options.get("dir_fd") is None else None
            if absolute is None:
                return function(path, *args, **options)
            try:
                with plain():
                    return how(function, absolute, *args, **options)
            except OSError as error:
                if error.filename is not None or error.filename2 is not None or not error.args[2:]:
                    error.filename, error.filename2 = path, None
                raise

        setattr(os, name, call)

    def read(function: Any, path: str, *args: Any, **options: Any) -> Any:
        return function(overlay.find(path) or overlay.upper + path, *args, **options)

    def change(function: Any, path: str, *args: Any, **options: Any) -> Any:
        found = overlay.find(path)
        if found is not None and os.path.isdir(found):
            return None  # modes and times of directories do not matter to a trace
        return function(overlay.prepare(path, keep_content=True), *args, **options)

    def create(function: Any, path: str, *args: Any, **options: Any) -> Any:
        if overlay.find(path) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        return function(overlay.prepare(path, keep_content=False), *args, **options)

    def remove(function: Any, path: str, **options: Any) -> None:
        found = overlay.find(path)
        if found is None or (os.path.isdir(found) and not os.path.islink(found)):
            function(overlay.upper + path if found is None else found)  # raises what it always raises
        overlay.remove(path)

    def remove_directory(function: Any, path: str, **options: Any) -> None:
        found = overlay.find(path)
        if found is None or not os.path.isdir(found):
            function(overlay.upper + path if found is None else found)
        if overlay.names(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        overlay.remove(path)

    def rename(function: Any, path: str, target: Any, **options: Any) -> None:
        new = overlay.absolute(target)
        if overlay.find(path) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        if not overlay.allow(new):
            overlay.rename(path, new)
        else:
            shutil.copy2(overlay.find(path) or path, new)
            overlay.remove(path)

    def make_directory(function: Any, path: str, mode: int = 0o777, **options: Any) -> None:
        overlay.make_directory(path, mode)

    def link(function: Any, path: str, target: Any, **options: Any) -> None:
        new = overlay.absolute(target)
        if overlay.find(new) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        shutil.copy2(overlay.find(path) or path, overlay.prepare(new, keep_content=False))

    def open_descriptor(function: Any, path: str, flags: int, *args: Any, **options: Any) -> int:
        if not flags & _WRITING:
            return int(read(function, path, flags, *args, **options))
        exists = overlay.find(path) is not None
        if flags & os.O_CREAT and flags & os.O_EXCL and exists:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        if not flags & os.O_CREAT and not exists:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        target = overlay.prepare(path, keep_content=not flags & os.O_TRUNC)
        return int(function(target, flags, *args, **options))

    def change_directory(function: Any, path: str) -> None:
        function(overlay.change_directory(path))

    for name in ("stat", "lstat", "access", "readlink", "listxattr", "getxattr", "statvfs", "pathconf"):
        redirect(name, read)
    for name in ("chmod", "chown", "lchown", "utime", "truncate", "setxattr", "removexattr"):
        redirect(name, change)
    for name in ("mkfifo", "mknod"):
        redirect(name, create)
    for name in ("remove", "unlink"):
        redirect(name, remove)
    for name in ("rename", "replace"):
        redirect(name, rename)
    redirect("rmdir", remove_directory)
    redirect("mkdir", make_directory)
    redirect("link", link)
    redirect("open", open_descriptor)
    redirect("chdir", change_directory)
    plain_symlink, plain_cwd, plain_list, plain_scan = os.symlink, os.getcwd, os.listdir, os.scandir

    def entries(path: Any) -> dict[str, str] | None:
        """The entries of a directory that the script changed; None for any other."""
        absolute = resolve(path)
        if absolute is None:
            return None
        with plain():
            if not overlay.is_changed(absolute):
                return None
            found = overlay.find(absolute)
            if found is None or not os.path.isdir(found):
                code = errno.ENOENT if found is None else errno.ENOTDIR
                raise OSError(code, os.strerror(code), os.fsdecode(path))
            return overlay.names(absolute)

    @functools.wraps(plain_list)
    def list_directory(path: Any = ".") -> Any:
        names = entries("." if path is None else path)
        if names is None:
            return plain_list(path)
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else list(names)

    @functools.wraps(plain_scan)
    def scan_directory(path: Any = ".") -> Any:
        names = entries("." if path is None else path)
        if names is None:
            return plain_scan(path)
        return _Entries([_Entry(path, name, found) for name, found in names.items()])

    @functools.wraps(plain_symlink)
    def symlink(source: Any, target: Any, *args: Any, **options: Any) -> None:
        absolute = resolve(target)
        if absolute is None:
            return plain_symlink(source, target, *args, **options)
        with plain():
            if overlay.find(absolute) is not None:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fsdecode(target))
            pointed = os.path.join(os.path.dirname(absolute), os.fsdecode(source))
            found = overlay.find(overlay.absolute(pointed))
            return plain_symlink(found or source, overlay.prepare(absolute, keep_content=False))

    def current_directory() -> str:
        return overlay.directory or plain_cwd()

    for name, redirected in (
        ("symlink", symlink), ("getcwd", current_directory), ("listdir", list_directory), ("scandir", scan_directory),
    ):  # fmt: skip
        setattr(os, name, redirected)
    shutil._use_fd_functions = False  # type: ignore[attr-defined]  # rmtree by paths, which are redirected
    plain_open = io.open

    @functools.wraps(plain_open)
    def open_file(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        opens_itself = (
            options.get("opener") is not None or len(args) > 5
        )  # with `os.open`, which is redirected
        path = None if opens_itself else resolve(file)
        if path is None:
            return plain_open(file, mode, *args, **options)
        with plain():
            found = overlay.find(path)
            where = found or overlay.upper + path
            try:
                if found is not None and os.path.isdir(found):
                    where = found
                elif set(mode) & set("wax+"):
                    if "x" in mode and found is not None:
                        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), file)
                    if "r" in mode and found is None:
                        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file)
                    if found is not None and not stat.S_ISREG(os.stat(found).st_mode):
                        return plain_open(found, mode, *args, **options)  # a pipe or a device
                    where = overlay.prepare(path, keep_content="w" not in mode)
                return plain_open(where, mode, *args, **options)
            except OSError as error:
                error.filename = file
                raise

    builtins.open = io.open = open_file
    plain_unlink = functools.reduce(getattr, ("unlink", "__wrapped__"), os)
    for method in vars(tempfile._TemporaryFileCloser).values():  # type: ignore[attr-defined]
        defaults = getattr(method, "__defaults__", None) or ()
        if plain_unlink in defaults:  # it was bound when the module was imported
            method.__defaults__ = tuple(os.unlink if each is plain_unlink else each for each in defaults)
    plain_connect = sqlite3.connect

    @functools.wraps(plain_connect)
    def connect(database: Any, *args: Any, **options: Any) -> Any:
        if isinstance(database, str) and (database == ":memory:" or database.startswith("file:")):
            return plain_connect(database, *args, **options)
        path = resolve(database)
        if path is not None:
            with plain():
                database = overlay.prepare(path, keep_content=True)
        return plain_connect(database, *args, **options)

    sqlite3.connect = connect


class _Entry:
    """One entry of a directory, like `os.DirEntry`."""

    def __init__(self, folder: Any, name: str, found: str) -> None:
        given = os.fspath(folder)
        self.name: Any = os.fsencode(name) if isinstance(given, bytes) else name
        self.path: Any = os.path.join(given, self.name)
        self._found = found

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isdir(self._found) and (follow_symlinks or not self.is_symlink())

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isfile(self._found) and (follow_symlinks or not self.is_symlink())

    def is_symlink(self) -> bool:
        return os.path.islink(self._found)

    def is_junction(self) -> bool:
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self._found, follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        return os.lstat(self._found).st_ino

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"


class _Entries:
    """The result of `os.scandir`: an iterator that can be closed."""

    def __init__(self, entries: list[_Entry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> "_Entries":
        return self

    def __next__(self) -> _Entry:
        return next(self._entries)

    def __enter__(self) -> "_Entries":
        return self

    def __exit__(self, *error: object) -> None: ...

    def close(self) -> None: ...
