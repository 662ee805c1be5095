"""Publishes the state of a run for `legroom monitor`: step, memory, trend and the latest finding.

A thread of the run calls `write` twice per second, so a step costs nothing. If the file cannot be written, the run
continues without it.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from legroom.diagnose.report.leaks import advice_on, holder_path
from legroom.log import log
from legroom.memory.events import Oom
from legroom.memory.live.folder import LiveFile
from legroom.memory.live.status import HISTORY, TREND_READINGS, DeviceStatus, RunStatus, trend
from legroom.observe.session import Session
from legroom.run.process_identity import describe_process
from legroom.show.common.formatting import format_frame
from legroom.units import format_size


class LiveStatusWriter:
    """Writes the live file of one run."""

    def __init__(
        self, session: Session, failures: Callable[[], Sequence[Oom]], header: Mapping[str, Any]
    ) -> None:
        """`failures` returns the out-of-memory errors so far. `header` is the header of the capture."""
        self._session = session
        self._failures = failures
        self._header = header
        self._started = time.time()
        self._file = LiveFile()
        self._readings: deque[tuple[int, int]] = deque(maxlen=HISTORY)
        """The step and the allocated memory at its end, for the latest steps that were measured."""
        self._is_off = False
        self._was_reported = False

    def write(self) -> None:
        """Write the current state. An error in Legroom ends the updates, but not the run."""
        if self._is_off:
            return
        try:
            if not self._file.write(self._status()) and not self._was_reported:
                self._was_reported = True
                log.debug("The live state of the run is not written, because its folder is not writable.")
        except Exception as error:
            self._is_off = True
            log.debug("The live state of the run is not updated (%s: %s).", type(error).__name__, error)

    def remove(self) -> None:
        self._file.remove()

    def _status(self) -> RunStatus:
        step, seconds, allocated = self._session.progress
        if step and (not self._readings or self._readings[-1][0] != step):
            self._readings.append((step, allocated))
        finding, advice = self._latest_finding()
        return describe_process(
            self._header,
            started=self._started,
            step=step,
            seconds_per_step=seconds if seconds > 0 else None,
            trend=trend(list(self._readings)[-TREND_READINGS - 1 :]),
            finding=finding,
            advice=advice,
            history=tuple(size for _, size in self._readings),
            devices=tuple(
                DeviceStatus(
                    index=device.index,
                    name=device.name,
                    kind=device.kind,
                    uuid=device.uuid,
                    capacity=device.capacity,
                    **self._session.memory_stats(device.index)._asdict(),
                )
                for device in self._session.devices
            ),
        )

    def _latest_finding(self) -> tuple[str, str]:
        """Return the newest out-of-memory error or leak, and the advice on it."""
        leaks, failures = self._session.leaks, self._failures()
        leak = max(leaks, key=lambda each: each.step) if leaks else None
        if failures and (leak is None or failures[-1].step >= leak.step):
            oom = failures[-1]
            place = f" at {format_frame(oom.frame)}" if oom.frame else ""
            return (
                f"Out of memory at step {oom.step}{place}: tried to allocate {format_size(oom.requested)}.",
                "",
            )
        if leak is None:
            return "", ""
        code, advice = advice_on(leak)
        return f"{code} {holder_path(leak)}", advice
