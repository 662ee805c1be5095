"""Tracks the threads that train in this process, and runs scans only while no other thread trains.

A backward pass runs without the GIL. The pass replaces `.grad`, frees saved tensors and releases graph nodes. If
another thread reads these objects at the same time, the process can crash. Therefore a thread registers before its
first backward pass or optimizer step, and registration waits for a running scan. While two registered threads are
alive, no scan starts.
"""

import contextlib
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import torch

from legroom.observe.dispatch.backward_engine import in_backward_pass

MAX_WAIT_SECONDS = 10.0
"""The maximum time in seconds that a thread waits for a scan in another thread. The wait is limited because a scan
calls the user's callback for leaks, and the callback might never return.
"""
_TORCH = Path(torch.__file__).parent
_TRAINING_CODE = tuple(f"{_TORCH / folder}/" for folder in ("nn", "autograd", "optim"))

_serials = itertools.count(1)


class _ThisThread(threading.local):
    def __init__(self) -> None:
        self.serial = next(_serials)
        self.is_registered = False


_this_thread = _ThisThread()
_registered: list[weakref.ref[threading.Thread]] = []
inference_threads: set[int] = set()
"""The identifiers of the threads that run a model with gradients disabled. A model without gradients does not modify
the autograd graph, so another thread can safely scan objects at the same time.
"""
_scan_lock = threading.RLock()
"""The lock that a thread holds during a scan. The lock is reentrant because the user's callback for leaks can itself
run training code.
"""


def thread_serial() -> int:
    """Return a number that identifies the calling thread. Unlike `threading.get_ident()`, the number is never reused."""
    return _this_thread.serial


def register_training_thread() -> None:
    """Register the calling thread as a training thread. Call this function before each backward pass and each
    optimizer step. Only the first call on a thread can block, to wait for a running scan.
    """
    if not _this_thread.is_registered:
        _register()


def other_threads_train() -> bool:
    if not _registered or (len(_registered) == 1 and _this_thread.is_registered):
        return False
    current, alive = threading.current_thread(), []
    for reference in list(_registered):
        thread = reference()
        if thread is not None and thread.is_alive():
            alive.append(thread)
        else:
            with contextlib.suppress(ValueError):  # another thread removed the entry
                _registered.remove(reference)
    return any(thread is not current for thread in alive)


@contextlib.contextmanager
def exclusive_scan() -> Iterator[bool]:
    """Yield whether this thread is allowed to scan all objects of the process. The value is False while another thread
    trains, runs a model with gradients enabled, or scans.
    """
    if not _scan_lock.acquire(blocking=False):
        yield False
        return
    try:
        yield not other_threads_train() and not _is_in_torch_elsewhere()
    finally:
        _scan_lock.release()


def _register() -> None:
    if in_backward_pass():
        return  # in a nested backward pass or a hook, the thread may belong to the engine
    _this_thread.is_registered = True
    acquired = _scan_lock.acquire(timeout=MAX_WAIT_SECONDS)
    try:
        _registered.append(weakref.ref(threading.current_thread()))
    finally:
        if acquired:
            _scan_lock.release()


def _is_in_torch_elsewhere() -> bool:
    """Return whether another thread runs a module, an optimizer or autograd with gradients enabled."""
    if threading.active_count() == 1:
        return False
    frames = sys._current_frames()
    for thread in (threading.get_ident(), *list(inference_threads)):
        frames.pop(thread, None)
    return any(map(_is_training_code, frames.values()))


def _is_training_code(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(_TRAINING_CODE):
            return True
        frame = frame.f_back
    return False


def _forget_other_threads() -> None:
    """Reset the state in a forked child. Another thread may have held the lock when the process forked, and that thread
    does not exist in the child.
    """
    global _scan_lock
    _scan_lock = threading.RLock()
    _registered.clear()
    inference_threads.clear()
    _this_thread.is_registered = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_other_threads)
