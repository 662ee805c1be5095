"""Finds the installed cuDNN library without loading it, and reads the `LEGROOM_CUDNN` setting."""

import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from legroom.errors import UsageError

SETTING = "LEGROOM_CUDNN"
"""The environment variable that contains `on` (the default), `off`, or the path to a cuDNN library."""
CUDNN = "libcudnn.so.9"
CUBLAS_LT = "libcublasLt.so"
"""The name of the cuBLASLt library, which cuDNN needs. If cuBLASLt cannot be loaded, cuDNN aborts the process."""
_PACKAGES = ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12")
_LINKER_CACHE = Path("/etc/ld.so.cache")
_LOADED = Path("/proc/self/maps")


def library_paths() -> list[str]:
    """Return the candidate paths of the cuDNN and cuBLASLt libraries, preferred path first. The result is empty if
    cuDNN is not installed or is disabled.

    Raises `UsageError` if `LEGROOM_CUDNN` is neither `on`, `off` nor a file.
    """
    setting = os.environ.get(SETTING, "")
    if setting == "off":
        return []
    products = [
        *_loaded(CUBLAS_LT),
        *_packaged("cublas", f"{CUBLAS_LT}.*"),
        *_packaged("cu1*", f"{CUBLAS_LT}.*"),
    ]
    if setting not in ("", "on"):
        if not Path(setting).is_file():
            raise UsageError(
                f"{SETTING}={setting!r} is not valid, because the file does not exist. Set {SETTING} to "
                f"`on`, `off`, or the path to {CUDNN}."
            )
        return [setting, *products]
    found = [*_loaded(CUDNN), *_packaged("cudnn", CUDNN), *_on_linker_path()]
    return [*found, *products] if found else []


def packaged_version() -> str | None:
    for package in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package)
    return None


def _loaded(name: str) -> list[str]:
    """Return the libraries that this process has already loaded. A CUDA build of torch loads cuDNN."""
    try:
        maps = _LOADED.read_text()
    except OSError:
        return []
    return list(dict.fromkeys(re.findall(rf"(/\S*/{re.escape(name)}\S*)", maps)))


def _packaged(package: str, library: str) -> Iterator[str]:
    try:
        found = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        return
    for folder in found.submodule_search_locations or () if found else ():
        yield from map(str, Path(folder).glob(f"{package}/lib/{library}"))


def _on_linker_path() -> list[str]:
    folders = filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    found = [str(path) for folder in folders if (path := Path(folder) / CUDNN).is_file()]
    with suppress(OSError):
        if CUDNN.encode() in _LINKER_CACHE.read_bytes():
            found.append(CUDNN)
    return found
