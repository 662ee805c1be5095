"""Makes this Python process look like one on a system without the functions of POSIX, such as Windows.

Python imports this file when it starts, if its folder is in PYTHONPATH. Torch and parts of the standard library are
imported before the functions are removed, because they were built for this system.
"""
# ruff: noqa: F401

import asyncio
import concurrent.futures.process
import contextlib
import ctypes
import faulthandler
import http.server
import logging.handlers
import multiprocessing.spawn
import multiprocessing.util
import os
import platform
import select
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import types

import psutil
import torch
import torch._dynamo
import torch.distributed.elastic.timer
import torch.distributed.tensor
import torch.utils.data

with contextlib.suppress(ImportError):
    import platformdirs  # used by textual

MODULES = ("fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty")
FUNCTIONS = {
    os: "fork forkpty killpg setsid getpgid getpgrp WNOHANG pread pwrite openpty nice getuid geteuid getgid getegid uname "
    "getloadavg sched_getaffinity sched_setaffinity statvfs memfd_create register_at_fork mkfifo mknod fchdir fchmod chown "
    "lchown fchown O_NOFOLLOW O_CLOEXEC O_PATH O_DIRECTORY sysconf pathconf getxattr setxattr listxattr removexattr ttyname",
    signal: "SIGKILL SIGUSR1 SIGUSR2 SIGALRM SIGCHLD SIGHUP SIGQUIT SIGPROF SIGRTMIN SIGPIPE SIGTSTP setitimer getitimer "
    "alarm pause pthread_sigmask pthread_kill sigwait ITIMER_REAL ITIMER_PROF SIG_BLOCK SIG_UNBLOCK",
    select: "poll epoll",
    socket: "AF_UNIX send_fds recv_fds socketpair SOCK_SEQPACKET MSG_DONTWAIT SO_REUSEPORT",
    faulthandler: "register",
}

for user in (subprocess, psutil, psutil._psposix, multiprocessing.util, concurrent.futures.process):
    for owner in FUNCTIONS:  # modules that were built for this system keep its functions
        if hasattr(user, owner.__name__):
            setattr(user, owner.__name__, types.SimpleNamespace(**vars(owner)))
platform.uname()  # cached, because it needs `os.uname`
for module in MODULES:
    sys.modules[module] = None  # an import raises ImportError
for owner, names in FUNCTIONS.items():
    for name in names.split():
        if hasattr(owner, name):
            delattr(owner, name)


class Library(ctypes.CDLL):
    """On Windows, there is no library of the process itself."""

    def __init__(self, name: str | None, *arguments: object, **options: object) -> None:
        if name is None:
            raise TypeError("argument of type 'NoneType' is not iterable")
        super().__init__(name, *arguments, **options)


ctypes.CDLL = Library
sys.platform = "other"
