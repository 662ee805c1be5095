"""Runs a script on a real GPU and records only its CUDA history.

    python -m tests.gpu.watch CAPTURE SCRIPT [FOLDER]

The program writes a capture. With FOLDER, it also writes every snapshot of the history to a file, for the unit tests.
"""

import runpy
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from tests.gpu import history_snapshots

from legroom.memory.capture.capture import CaptureWriter
from legroom.observe.cuda import history
from legroom.observe.cuda.history_events import DeviceHistory


def main(capture: str, script: str, folder: str | None = None) -> int:
    if folder is not None:
        _save_snapshots(Path(folder), Path(script).stem)
    sys.argv = [script]
    code = 0
    writer = CaptureWriter(Path(capture), run={"script": script}, force=True)
    recorded = history.CudaHistory(writer.write)
    with recorded:
        try:
            runpy.run_path(script, run_name="__main__")
        except Exception:
            traceback.print_exc()
            code = 1
        started = time.perf_counter()
        recorded.finish()
        print(f"reading the history at the end took {time.perf_counter() - started:.3f} s", file=sys.stderr)
    writer.close()
    return code


def _save_snapshots(folder: Path, stem: str) -> None:
    original = DeviceHistory.read
    number = 0

    def read(self: DeviceHistory, trace: Any, segments: Any, **options: Any) -> Any:
        nonlocal number
        number += 1
        settings = options["settings"].as_dict()
        snapshot = {**options, "trace": trace, "segments": segments, "settings": settings}
        records = [
            m for m in options["records"] if not (hasattr(m, "event") and not hasattr(m.event, "step"))
        ]
        if options["failure"] is None:
            history_snapshots.save(
                folder / f"{stem}_{number}.json.gz",
                snapshot,
                self.markers,
                records,
                Path(__file__).parents[2],
            )
        return original(self, trace, segments, **options)

    DeviceHistory.read = read  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
