"""Uses Landlock, a feature of the Linux kernel, to deny writes outside given folders. The restriction applies to this
process and every process that it starts.

Landlock also applies to writes that Python cannot redirect: writes by C and C++ code, `os.system` and other programs.
Landlock is available in Linux 5.13 and newer and needs no privileges. The restriction cannot be undone.
"""

import contextlib
import ctypes
import os
import sys
from collections.abc import Sequence

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_QUERY, _PATH_BENEATH, _NO_NEW_PRIVILEGES = 1, 1, 38

_WRITE_FILE, _REMOVE_DIR, _REMOVE_FILE, _MAKE_CHAR, _MAKE_DIR, _MAKE_REG = (
    1 << bit for bit in (1, 4, 5, 6, 7, 8)
)
_MAKE_SOCK, _MAKE_FIFO, _MAKE_BLOCK, _MAKE_SYM = (1 << bit for bit in (9, 10, 11, 12))
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_ON_FILES = _WRITE_FILE | _TRUNCATE


class _Ruleset(ctypes.Structure):
    _fields_ = (("handled_access_fs", ctypes.c_uint64),)


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def forbid_writes_outside(folders: Sequence[str]) -> bool:
    """Forbid writes outside `folders` for the rest of the process. Return False and change nothing if the kernel does
    not support Landlock.

    Threads that are already running are not restricted, so call this function before the script starts a thread.
    """
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE_RULESET, None, 0, _VERSION_QUERY)
    if version < 1:
        return False
    handled = (
        _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_CHAR | _MAKE_DIR | _MAKE_REG | _MAKE_SOCK | _MAKE_FIFO
        | _MAKE_BLOCK | _MAKE_SYM
    )  # fmt: skip
    if version >= 2:
        handled |= _REFER
    if version >= 3:
        handled |= _TRUNCATE
    ruleset = _Ruleset(handled)
    descriptor = libc.syscall(_CREATE_RULESET, ctypes.byref(ruleset), ctypes.sizeof(ruleset), 0)
    if descriptor < 0:
        return False
    try:
        for folder in folders:
            with contextlib.suppress(FileNotFoundError):
                _allow(libc, descriptor, folder, handled)
        if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
            return False
        return bool(libc.syscall(_RESTRICT_SELF, descriptor, 0) == 0)
    finally:
        os.close(descriptor)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, access: int) -> None:
    opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = _PathBeneath(access if os.path.isdir(path) else access & _ON_FILES, opened)
        libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(opened)
