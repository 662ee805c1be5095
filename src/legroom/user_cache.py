"""The user's cache folder, which can be set with `LEGROOM_CACHE=PATH`. `LEGROOM_CACHE=off` disables all caches.

Caches are optional, so this module raises no errors. Data that cannot be read or written is not cached.
"""

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

_DISABLED = ("off", "0", "no", "none", "false")


def is_disabled(setting: str) -> bool:
    return setting.strip().lower() in _DISABLED


def cache_folder(name: str) -> Path | None:
    setting = os.environ.get("LEGROOM_CACHE", "")
    if is_disabled(setting):
        return None
    if setting:
        return Path(setting) / name
    cache = os.environ.get("XDG_CACHE_HOME", "")
    with contextlib.suppress(RuntimeError):
        return (Path(cache) if cache else Path.home() / ".cache") / "legroom" / name
    return None


def read_json(file: Path, *, max_bytes: int) -> Any:
    """Return the content of a file, or None if it cannot be read. A file larger than `max_bytes` is ignored, because
    Legroom writes only smaller files."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        if file.stat().st_size <= max_bytes:
            return json.loads(file.read_text(encoding="utf-8"))
    return None


def write_json(file: Path, content: Any) -> bool:
    """Replace a file atomically, so that the file is complete even if several processes write it. Return True if the
    file was written.
    """
    temporary: str | None = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        text = json.dumps(content)
        descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=".", suffix=".tmp")
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(temporary, file)
    except (OSError, TypeError, ValueError):
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        return False
    return True
