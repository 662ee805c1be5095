r"""A file system overlay. A script writes to a scratch folder, and reads its own changes from there.

The user's files are the lower layer and never change. The upper layer is a scratch folder with the same folder
structure. All files that the script writes are stored in the upper layer. For example, `/home/me/log.csv` becomes
`UPPER/home/me/log.csv`, and `C:\me\log.csv` becomes `UPPER\C\me\log.csv`. Files in the lower layer that the script
deleted or renamed are recorded in memory.

`resolve` returns the absolute path that the script refers to, with all links resolved. `find` returns the path of the
real file, in the upper or the lower layer, that contains the data. The overlay resolves links itself, because a link
may point to a file that exists only in the upper layer. The kernel would not find this file.
"""

import contextlib
import errno
import functools
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

KERNEL_FOLDERS = ("/dev", "/proc", "/sys")
"""Folders that contain devices, shared memory and files of the kernel instead of the user's files."""

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

_MAX_LINKS = 40
"""The number of links that Linux follows in one path before it reports a loop."""


class Overlay:
    def __init__(self, upper: Path, *, scratch: Path) -> None:
        self.upper = os.path.realpath(upper)
        self._scratch = os.path.realpath(scratch)
        os.makedirs(self.upper, exist_ok=True)
        self._deleted: set[str] = set()
        self._moved: dict[str, str] = {}
        """Maps the new path of each renamed file to the path in the lower layer that has its content."""
        self._threads = threading.local()
        self._directory: str | None = None
        """The current directory if it exists only in the upper layer, otherwise None."""

    @contextlib.contextmanager
    def plain(self) -> Iterator[None]:
        self._threads.depth = getattr(self._threads, "depth", 0) + 1
        try:
            yield
        finally:
            self._threads.depth -= 1

    @property
    def is_plain(self) -> bool:
        return bool(getattr(self._threads, "depth", 0))

    @contextlib.contextmanager
    def with_opener(self, file: Any) -> Iterator[None]:
        """Record that the script calls `open(file, opener=...)`. Python's audit hook reports this call as if `open`
        itself opened the file.
        """
        self._threads.has_opener = file
        try:
            yield
        finally:
            self._threads.has_opener = None

    def was_left_to_opener(self, file: Any) -> bool:
        """Return whether `open` is about to call its argument `opener` for `file`. The result is True only once per
        call to `open`.
        """
        is_left = file is not None and getattr(self._threads, "has_opener", None) is file
        if is_left:
            self._threads.has_opener = None
        return is_left

    def continue_in(self, upper: Path) -> None:
        """Continue with a copy of the upper layer. A fork needs its own copy, because other forks write to the same
        paths.
        """
        old, self.upper = self.upper, os.path.realpath(upper)
        shutil.copytree(old, self.upper, symlinks=True, dirs_exist_ok=True)
        if self._directory is not None:
            os.chdir(self._upper(self._directory))

    # --- locations of paths

    def is_scratch(self, path: str) -> bool:
        """Return whether a resolved path is in the scratch folder or is not a user file. Calls with these paths are not
        redirected.
        """
        return _is_below(path, self._scratch) or _is_kernel(path)

    def resolve(self, path: Any, *, follow: bool = True, folder: int | None = None) -> str:
        """Return the absolute path with all links resolved, as the script sees the file system.

        Links in the parent folders are always resolved. With `follow`, a link at the end of the path is also resolved.
        `folder` is the file descriptor of the directory from which relative paths start.
        """
        text = os.fsdecode(path)
        current = self.directory_of(folder) if folder is not None else self._directory or os.getcwd()
        if os.sep != "/":  # Windows removes `..` before it follows links
            text = without_prefix(os.path.abspath(os.path.join(current, text)))
        if _is_kernel(text):
            return text
        current, parts = _split(text, current)
        links, may_be_upper = 0, True
        while parts:
            part = parts.pop()
            if part in ("", "."):
                continue
            if part == "..":
                self.require(current)
                current, may_be_upper = os.path.dirname(current), True
                continue
            candidate = os.path.join(current, part)
            if _is_kernel(candidate):
                return os.path.join(candidate, *parts[::-1])
            if parts or follow:
                target, may_be_upper = self._link(candidate, may_be_upper)
                if target is not None:
                    links += 1
                    if links > _MAX_LINKS:
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                    current, more = _split(without_prefix(target), current)
                    parts.extend(more)
                    may_be_upper = True
                    continue
            current = candidate
        return current

    def _link(self, path: str, may_be_upper: bool) -> tuple[str | None, bool]:
        """Return the target of a link (or None if the path is not a link), and whether the path is in the upper layer."""
        if may_be_upper:
            try:
                return os.readlink(self._physical(path)), True
            except OSError as error:
                if error.errno == errno.EINVAL:
                    return None, True
        lower = self._lower(path)
        return (None if lower is None else _link_of_user(lower)), False

    def find(self, path: str) -> str | None:
        """Return the path of the real file for a resolved path, or None if the resolved path does not exist."""
        upper = self._physical(path)
        if os.path.lexists(upper):
            return upper
        lower = self._lower(path)
        return lower if lower is not None and os.path.lexists(lower) else None

    def location(self, path: str) -> str:
        """Return the path of the real file for a resolved path. If the resolved path does not exist, return the path to
        which the script would write.
        """
        found = self.find(path)
        if found is None:
            parent = self.find(os.path.dirname(path))
            if parent is not None and not os.path.isdir(parent):
                return os.path.join(
                    parent, os.path.basename(path)
                )  # the kernel reports that this is not a directory
        return found or self._physical(path)

    def require(self, path: str) -> str:
        """Return the path of the real file for a resolved path. If the resolved path does not exist, raise the same
        error as the kernel.
        """
        location = self.location(path)
        os.lstat(location)
        return location

    def names(self, path: str) -> list[str]:
        found: dict[str, None] = {}
        lower = self._lower(path)
        if lower is not None and os.path.isdir(lower):
            found.update((name, None) for name in os.listdir(lower) if self._lower(os.path.join(path, name)))
        upper = self._physical(path)
        if os.path.isdir(upper):
            found.update((name, None) for name in os.listdir(upper))
        found.update((os.path.basename(each), None) for each in self._moved if os.path.dirname(each) == path)
        return list(found)

    def is_changed(self, path: str) -> bool:
        return self.find(path) != path or any(
            os.path.dirname(each) == path for each in (*self._deleted, *self._moved)
        )

    def _upper(self, path: str) -> str:
        return self.upper + path_in_layer(path)

    def _physical(self, path: str) -> str:
        return path if self.is_scratch(path) else self._upper(path)

    def _lower(self, path: str) -> str | None:
        if not self._moved and not self._deleted:
            return path
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
        """Return the path in the upper layer to which a file is written. With `keep_content`, the existing content is
        copied to this path.
        """
        upper = self._physical(path)
        if not os.path.lexists(upper):
            self._make_parents(path)
            lower = self._lower(path)
            if lower is not None and os.path.isdir(lower):
                os.mkdir(upper)
            elif keep_content and lower is not None and os.path.isfile(lower):
                shutil.copyfile(lower, upper)
        if not os.path.isdir(upper):
            self._moved.pop(path, None)
        return upper

    def make_directory(self, path: str, mode: int) -> None:
        if self.find(path) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        self._make_parents(path)
        os.mkdir(self._physical(path), mode)

    def make_link(self, path: str, target: str) -> None:
        """Create a symbolic link with exactly the target that the script passed. `resolve` reads this target."""
        if self.find(path) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        self._make_parents(path)
        os.symlink(target, self._physical(path))

    def remove(self, path: str) -> None:
        upper = self._physical(path)
        if is_folder(upper):
            shutil.rmtree(upper)
        elif os.path.lexists(upper):
            os.remove(upper)
        self._moved.pop(path, None)
        self._deleted = {each for each in self._deleted if not each.startswith(path + os.sep)}
        lower = self._lower(path)
        if lower is not None and os.path.lexists(lower):
            self._deleted.add(path)

    def rename(self, source: str, target: str) -> None:
        """Move a file or a directory in the file system that the script sees. Content in the lower layer is copied only
        if `source` or `target` is in the scratch folder or is not a user file.
        """
        self._make_parents(target)
        self._check_rename(source, target)
        if source == target:
            return
        if self.is_scratch(source) or self.is_scratch(target):
            self._discard(target)
            self.copy(source, self._physical(target))
            self.remove(source)
            return
        lower, upper = self._lower(source), self._upper(source)
        holding = self.upper + f".moved-{os.getpid()}-{threading.get_ident()}"
        was_upper = os.path.lexists(upper)
        if was_upper:
            os.rename(upper, holding)
        self._discard(target)
        below = [(path, origin) for path, origin in self._moved.items() if path.startswith(source + os.sep)]
        gone = [path for path in self._deleted if path.startswith(source + os.sep)]
        if lower is not None and os.path.lexists(lower):
            self._moved[target] = lower
        if was_upper:
            os.rename(holding, self._upper(target))
        for path, origin in below:
            del self._moved[path]
            self._moved[target + path[len(source) :]] = origin
        self.remove(source)
        self._deleted.update(target + path[len(source) :] for path in gone)

    def copy(self, source: str, destination: str) -> None:
        found = self.location(source)
        if is_folder(found):
            os.mkdir(destination)
            for name in self.names(source):
                self.copy(os.path.join(source, name), os.path.join(destination, name))
        else:
            shutil.copy2(found, destination, follow_symlinks=False)

    def _check_rename(self, source: str, target: str) -> None:
        """Raise the same error as the kernel if `target` exists and `source` cannot replace it."""
        old, new = self.require(source), self.find(target)
        code = 0
        if target == source:
            return
        if target.startswith(source + os.sep):
            code = errno.EINVAL if is_folder(old) else errno.ENOTDIR
        elif source.startswith(target + os.sep):
            code = errno.ENOTEMPTY
        elif new is not None:
            old_is_folder, new_is_folder = map(is_folder, (old, new))
            if old_is_folder and not new_is_folder:
                code = errno.ENOTDIR
            elif new_is_folder and not old_is_folder:
                code = errno.EISDIR
            elif new_is_folder and self.names(target):
                code = errno.ENOTEMPTY
        if code:
            raise OSError(code, os.strerror(code))

    def _discard(self, path: str) -> None:
        if self.find(path) is not None:
            self.remove(path)

    def _make_parents(self, path: str) -> None:
        parent = os.path.dirname(path)
        if not os.path.isdir(self.require(parent)):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        os.makedirs(self._physical(parent), exist_ok=True)

    # --- directories

    def change_directory(self, path: str) -> None:
        found = self.require(path)
        os.chdir(found)
        self._directory = None if found == path else path

    @property
    def directory(self) -> str | None:
        return self._directory

    def directory_of(self, descriptor: int) -> str:
        physical = path_of(descriptor)
        return physical[len(self.upper) :] if _is_below(physical, self.upper) else physical


def is_folder(path: str) -> bool:
    """Return whether a path is a directory, and not a link to a directory."""
    return os.path.isdir(path) and not os.path.islink(path)


def path_in_layer(path: str, system: ModuleType = os.path) -> str:
    """Return the path of a file, relative to the root directory of its layer.

    A drive (`C:`) or a network share becomes a folder.
    """
    drive, rest = system.splitdrive(path)
    name = drive.replace(":", "").strip(system.sep)
    return f"{system.sep}{name}{rest}" if name else rest


def without_prefix(path: str) -> str:
    """Remove the Windows prefix for paths without a length limit."""
    if path.startswith("\\\\?\\UNC\\"):
        return "\\\\" + path[8:]
    return path.removeprefix("\\\\?\\")


def _split(path: str, folder: str) -> tuple[str, list[str]]:
    drive, rest = os.path.splitdrive(path)
    return (drive + os.sep if os.path.isabs(path) else folder), rest.split(os.sep)[::-1]


def _is_below(path: str, folder: str) -> bool:
    path, folder = os.path.normcase(path), os.path.normcase(folder)
    return path == folder or path.startswith(folder + os.sep)


def _is_kernel(path: str) -> bool:
    if os.sep != "/":
        return path.startswith("\\\\.\\")  # a device of Windows, such as `nul`
    return path.startswith(KERNEL_FOLDERS) and any(_is_below(path, folder) for folder in KERNEL_FOLDERS)


@functools.lru_cache(maxsize=65536)
def _link_of_user(path: str) -> str | None:
    # The result is cached, because the lower layer does not change while a script is traced.
    try:
        return os.readlink(path)
    except OSError:
        return None


def path_of(descriptor: int) -> str:
    if os.path.isdir("/proc/self/fd"):
        return os.readlink(f"/proc/self/fd/{descriptor}")
    try:
        import fcntl

        command = fcntl.F_GETPATH  # type: ignore[attr-defined]  # macOS
    except (ImportError, AttributeError):
        raise OSError(errno.ENOTSUP, "the path of an open file cannot be determined on this system") from None
    return os.fsdecode(fcntl.fcntl(descriptor, command, b"\0" * 1024).rstrip(b"\0"))
