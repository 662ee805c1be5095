"""Compresses the files of a wheel again with Zopfli, which makes the wheel about 4% smaller.

    python .github/recompress_wheel.py dist/legroom-0.1.0-py3-none-any.whl

The contents stay the same, so the hashes in RECORD stay valid. Needs the package `zopfli`.
"""

import sys
import zipfile
from pathlib import Path
from typing import Any

import zopfli.zlib


class _Compressor:
    """The part of `zlib.compressobj` that `zipfile` uses."""

    def __init__(self) -> None:
        self._data = bytearray()

    def compress(self, data: bytes) -> bytes:
        self._data += data
        return b""

    def flush(self) -> bytes:
        return zopfli.zlib.compress(bytes(self._data))[2:-4]  # without the header and the checksum of zlib


def main(wheel: Path) -> None:
    compressor: Any = zipfile
    compressor._get_compressor = lambda *_: _Compressor()  # zipfile has no option for another compressor
    before, smaller = wheel.stat().st_size, wheel.with_suffix(".smaller")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(smaller, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.infolist():
            new.writestr(member, old.read(member))
    with zipfile.ZipFile(smaller) as new:
        assert new.testzip() is None
    smaller.replace(wheel)
    print(f"{wheel.name}: {before:,} bytes, now {wheel.stat().st_size:,}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
