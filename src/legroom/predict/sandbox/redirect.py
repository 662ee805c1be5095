"""Redirects Python's file functions to the overlay: `open`, the `os` functions, and `sqlite3.connect`.

Standard library modules that call these functions are redirected too (pathlib, shutil, tempfile, logging, zipfile, …).
"""

import builtins
import errno
import functools
import genericpath
import io
import os
import shutil
import sqlite3
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from legroom.predict.sandbox.overlay import WRITING, Overlay, is_folder


def redirect_files(overlay: Overlay) -> None:
    before = dict(vars(os))
    _redirect_os(overlay)
    _redirect_directories(overlay)
    for supported in (
        os.supports_dir_fd,
        os.supports_fd,
        os.supports_follow_symlinks,
        os.supports_effective_ids,
    ):
        supported.update(
            getattr(os, name) for name, function in before.items() if _is_in(function, supported)
        )
    if os.name == "nt":  # written in C, without the functions of `os`
        for name in ("exists", "lexists", "isfile", "isdir", "islink"):
            if hasattr(genericpath, name):
                setattr(os.path, name, getattr(genericpath, name))
    _redirect_open(overlay)
    _redirect_sqlite(overlay)


def _is_in(value: Any, functions: set[Any]) -> bool:
    return callable(value) and value in functions


def _redirect_os(overlay: Overlay) -> None:
    def redirect(names: str, how: Callable[..., Any], *, follow: bool = True) -> None:
        """Replace `os` functions that take a path. `how(plain_function, resolved_path, *arguments)` handles the path.

        With `follow`, the function acts on the target of a link.
        """
        for name in names.split():
            if hasattr(os, name):
                setattr(os, name, _redirected(overlay, getattr(os, name), how, follow))

    def read(function: Any, path: str, *args: Any, **options: Any) -> Any:
        return function(overlay.location(path), *args, **options)

    def change(function: Any, path: str, *args: Any, **options: Any) -> Any:
        found = overlay.require(path)
        if os.path.isdir(found) or os.path.islink(found):
            return None  # modes and times of directories and links do not matter to a trace
        return function(overlay.prepare(path, keep_content=True), *args, **options)

    def create(function: Any, path: str, *args: Any, **options: Any) -> Any:
        if overlay.find(path) is not None:
            _fail(errno.EEXIST)
        return function(overlay.prepare(path, keep_content=False), *args, **options)

    def remove(function: Any, path: str) -> None:
        found = overlay.require(path)
        if is_folder(found):
            _fail(errno.EISDIR)
        overlay.remove(path)

    def remove_directory(function: Any, path: str) -> None:
        found = overlay.require(path)
        if not is_folder(found):
            _fail(errno.ENOTDIR)
        if overlay.names(path):
            _fail(errno.ENOTEMPTY)
        overlay.remove(path)

    def make_directory(function: Any, path: str, mode: int = 0o777) -> None:
        overlay.make_directory(path, mode)

    def open_descriptor(function: Any, path: str, flags: int, *args: Any, **options: Any) -> int:
        if not flags & WRITING:
            return int(read(function, path, flags, *args, **options))
        exists = overlay.find(path) is not None
        if flags & os.O_CREAT and flags & os.O_EXCL and exists:
            _fail(errno.EEXIST)
        if not flags & os.O_CREAT:
            overlay.require(path)
        target = overlay.prepare(path, keep_content=not flags & os.O_TRUNC)
        return int(function(target, flags | os.O_CREAT, *args, **options))  # a truncated file was not copied

    redirect("stat access listxattr getxattr statvfs pathconf", read)
    redirect("lstat readlink", read, follow=False)
    redirect("chmod chown utime truncate setxattr removexattr", change)
    redirect("lchown lchmod", change, follow=False)
    redirect("mkfifo mknod", create, follow=False)
    redirect("remove unlink", remove, follow=False)
    redirect("rmdir", remove_directory, follow=False)
    redirect("mkdir", make_directory, follow=False)
    redirect("open", open_descriptor)

    def redirect_pair(name: str, how: Callable[[str, str], None]) -> None:
        function = getattr(os, name)

        @functools.wraps(function)
        def call(
            src: Any,
            dst: Any,
            *,
            src_dir_fd: int | None = None,
            dst_dir_fd: int | None = None,
            **options: Any,
        ) -> Any:
            if overlay.is_plain:
                return function(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, **options)
            with overlay.plain(), _as_given(src, dst):
                source = overlay.resolve(src, follow=False, folder=src_dir_fd)
                target = overlay.resolve(dst, follow=False, folder=dst_dir_fd)
                if overlay.is_scratch(source) and overlay.is_scratch(target):
                    return function(source, target)
                return how(source, target)

        setattr(os, name, call)

    def link(source: str, target: str) -> None:
        found = overlay.require(source)
        if overlay.find(target) is not None:
            _fail(errno.EEXIST)
        prepared = overlay.prepare(target, keep_content=False)
        if is_folder(found):
            _fail(errno.EPERM)
        shutil.copy2(found, prepared, follow_symlinks=False)

    redirect_pair("rename", overlay.rename)
    redirect_pair("replace", overlay.rename)
    redirect_pair("link", link)
    plain_symlink = os.symlink

    @functools.wraps(plain_symlink)
    def symlink(src: Any, dst: Any, target_is_directory: bool = False, *, dir_fd: int | None = None) -> None:
        if overlay.is_plain:
            return plain_symlink(src, dst, target_is_directory, dir_fd=dir_fd)
        with overlay.plain(), _as_given(src, dst):
            return overlay.make_link(overlay.resolve(dst, follow=False, folder=dir_fd), os.fsdecode(src))

    os.symlink = symlink
    shutil._use_fd_functions = False  # type: ignore[attr-defined]  # rmtree by paths, which are redirected
    plain_unlink = functools.reduce(getattr, ("unlink", "__wrapped__"), os)
    for method in vars(tempfile._TemporaryFileCloser).values():  # type: ignore[attr-defined]
        defaults = getattr(method, "__defaults__", None) or ()
        if plain_unlink in defaults:  # bound as a default argument when the module was imported
            method.__defaults__ = tuple(os.unlink if each is plain_unlink else each for each in defaults)


def _redirected(overlay: Overlay, function: Any, how: Callable[..., Any], follow: bool) -> Any:
    @functools.wraps(function)
    def call(path: Any, *args: Any, dir_fd: int | None = None, **options: Any) -> Any:
        if overlay.is_plain or not isinstance(path, str | bytes | os.PathLike):
            return function(path, *args, **options, **({} if dir_fd is None else {"dir_fd": dir_fd}))
        follows = follow and options.get("follow_symlinks", True)
        if function is _PLAIN_OPEN and args and args[0] & (getattr(os, "O_NOFOLLOW", 0) | os.O_EXCL):
            follows = False
        with overlay.plain(), _as_given(path):
            resolved = overlay.resolve(path, follow=follows, folder=dir_fd)
            if overlay.is_scratch(resolved):
                return function(resolved, *args, **options)
            return how(function, resolved, *args, **options)

    return call


_PLAIN_OPEN = os.open


class _as_given:  # noqa: N801
    """Makes errors inside the `with` block contain the paths that the script passed."""

    def __init__(self, path: Any, second: Any = None) -> None:
        self._paths = (path, second)

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError) and error.errno is not None:
            error.filename, second = self._paths
            if second is not None:
                error.filename2 = second


def _fail(code: int) -> NoReturn:
    raise OSError(code, os.strerror(code))


def _redirect_directories(overlay: Overlay) -> None:
    plain_list, plain_scan, plain_cwd, plain_change = os.listdir, os.scandir, os.getcwd, os.chdir

    def resolve(path: Any) -> str:
        return overlay.directory_of(path) if isinstance(path, int) else overlay.resolve(path)

    def names_in(path: Any, resolved: str) -> list[str] | None:
        """Return the names in a directory if the script has changed its entries, or if the path contains a link that
        the script created. Otherwise, return None.
        """
        is_reached = isinstance(path, int) or os.path.realpath(path) == resolved
        if is_reached and not overlay.is_changed(resolved):
            return None
        if not os.path.isdir(overlay.require(resolved)):
            _fail(errno.ENOTDIR)
        return overlay.names(resolved)

    @functools.wraps(plain_list)
    def list_directory(path: Any = None) -> Any:
        if overlay.is_plain:
            return plain_list(path)
        given = "." if path is None else path
        with overlay.plain(), _as_given(given):
            names = names_in(given, resolve(given))
        if names is None:
            return plain_list(path)
        return [os.fsencode(name) if isinstance(path, bytes) else name for name in names]

    @functools.wraps(plain_scan)
    def scan_directory(path: Any = None) -> Any:
        if overlay.is_plain:
            return plain_scan(path)
        given = "." if path is None else path
        with overlay.plain(), _as_given(given):
            resolved = resolve(given)
            names = names_in(given, resolved)
        if names is None:
            return _Entries(_with_redirected_links(plain_scan(path), given, resolved))
        return _Entries(_Entry(given, resolved, name) for name in names)

    @functools.wraps(os.chdir)
    def change_directory(path: Any) -> None:
        if overlay.is_plain:
            return plain_change(path)
        with overlay.plain(), _as_given(path):
            return overlay.change_directory(resolve(path))

    @functools.wraps(plain_cwd)
    def current_directory() -> str:
        return plain_cwd() if overlay.is_plain else overlay.directory or plain_cwd()

    os.listdir, os.scandir = list_directory, scan_directory
    os.chdir, os.getcwd = change_directory, current_directory
    if hasattr(os, "fchdir"):
        os.fchdir = lambda fd: change_directory(fd if isinstance(fd, int) else fd.fileno())
    os.getcwdb = lambda: os.fsencode(current_directory())


def _redirect_open(overlay: Overlay) -> None:
    plain_open = io.open

    @functools.wraps(plain_open)
    def open_file(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        if options.get("opener") is not None or len(args) > 5:
            with overlay.with_opener(file):  # it uses `os.open`, which is redirected
                return plain_open(file, mode, *args, **options)
        if overlay.is_plain or not isinstance(file, str | bytes | os.PathLike):
            return plain_open(file, mode, *args, **options)
        with overlay.plain(), _as_given(file):
            path = overlay.resolve(file, follow="x" not in mode)
            where = overlay.location(path)
            if set(mode) & set("wax+") and not overlay.is_scratch(path):
                found = overlay.find(path)
                if "x" in mode and found is not None:
                    _fail(errno.EEXIST)
                if "r" in mode:
                    overlay.require(path)
                where = overlay.prepare(path, keep_content="w" not in mode)
            return plain_open(where, mode, *args, **options)

    builtins.open = io.open = open_file


_SQLITE_URI = 6
"""The index of the argument `uri` of `sqlite3.connect`, not counting the argument for the database."""


def _redirect_sqlite(overlay: Overlay) -> None:
    plain_connect = sqlite3.connect

    def prepare(path: Any, *, read_only: bool = False) -> str:
        resolved = overlay.resolve(path)
        if overlay.is_scratch(resolved) or read_only:
            return overlay.location(resolved)
        for suffix in ("-journal", "-wal"):  # changes that are not yet in the database
            if overlay.find(resolved + suffix) is not None:
                overlay.prepare(resolved + suffix, keep_content=True)
        return overlay.prepare(resolved, keep_content=True)

    @functools.wraps(plain_connect)
    def connect(database: Any, *args: Any, **options: Any) -> Any:
        text = os.fsdecode(database)
        is_uri = args[_SQLITE_URI] if len(args) > _SQLITE_URI else options.get("uri", False)
        if not overlay.is_plain and text not in ("", ":memory:"):
            with overlay.plain(), _as_given(database):
                database = prepare_uri(text) if is_uri and text.startswith("file:") else prepare(text)
        return plain_connect(database, *args, **options)

    def prepare_uri(text: str) -> str:
        path, _, query = text.removeprefix("file:").partition("?")
        mode = urllib.parse.parse_qs(query).get("mode", [""])[0]
        path = path.partition("#")[0]
        if path.startswith("//"):  # an authority, which is empty or `localhost`
            path = "/" + path[2:].partition("/")[2]
        path = urllib.request.url2pathname(path)
        if mode == "memory" or path in ("", ":memory:"):
            return text
        return f"{Path(prepare(path, read_only=mode == 'ro')).as_uri()}?{query}"

    sqlite3.connect = sqlite3.dbapi2.connect = connect


class _Entry:
    def __init__(self, given: Any, folder: str, name: str) -> None:
        given = given if isinstance(given, int) else os.fspath(given)
        self.name: Any = os.fsencode(name) if isinstance(given, bytes) else name
        self.path: Any = self.name if isinstance(given, int) else os.path.join(given, self.name)
        self._resolved = os.path.join(folder, name)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isdir(self._resolved) and (follow_symlinks or not self.is_symlink())

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isfile(self._resolved) and (follow_symlinks or not self.is_symlink())

    def is_symlink(self) -> bool:
        return os.path.islink(self._resolved)

    def is_junction(self) -> bool:
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self._resolved, follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        return os.lstat(self._resolved).st_ino

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"


def _with_redirected_links(scan: Any, given: Any, folder: str) -> Iterator[Any]:
    """Yield the entries of an unchanged directory. Links are redirected, because the script may have changed their
    targets.
    """
    with scan:
        for entry in scan:
            yield _Entry(given, folder, os.fsdecode(entry.name)) if entry.is_symlink() else entry


class _Entries:
    def __init__(self, entries: Iterator[Any]) -> None:
        self._entries = entries

    def __iter__(self) -> "_Entries":
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> "_Entries":
        return self

    def __exit__(self, *error: object) -> None: ...

    def close(self) -> None: ...
