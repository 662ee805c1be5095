"""Real GPUs that a process of stand-ins must not see."""

import contextlib
import os
import warnings

import torch

VARIABLE = "CUDA_VISIBLE_DEVICES"


def hide_real_gpus() -> None:
    """From now on torch finds no real GPU in this process; the environment stays as the script expects it.

    Autograd starts a thread for each GPU at the first backward pass, and a process with such threads cannot be forked and
    go on. torch counts the GPUs once, so counting them while none is visible settles it. Too late where they have been
    counted before; without the function that counts, a CUDA build on a machine with a GPU cannot trace in forks.
    """
    count = getattr(torch._C, "_cuda_getDeviceCount", None)
    if count is None:  # a build without CUDA
        return
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = ""
    try:
        with warnings.catch_warnings(), contextlib.suppress(RuntimeError):
            warnings.simplefilter("ignore")
            count()
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
