"""Hides real GPUs from a process that uses fake device tensors."""

import contextlib
import os
import warnings

import torch

VARIABLE = "CUDA_VISIBLE_DEVICES"


def hide_real_gpus() -> None:
    """Make torch find no real GPU in this process, without changing the environment variables of the script.

    Autograd starts one thread per GPU at the first backward pass, and a process with these threads cannot continue
    after a fork. PyTorch counts the GPUs only once, so this function makes torch count them while no GPU is visible.
    The function has no effect if torch has already counted the GPUs. If torch lacks the private function that counts
    the GPUs, a CUDA build on a machine with a GPU cannot trace in forked processes.
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
