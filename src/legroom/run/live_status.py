"""Publishes the state of a run for `legroom monitor`: step, memory, trend and the latest finding.

A background thread calls `write` twice per second, so steps are not slowed down. If the file cannot be written, the run
continues without it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from legroom.diagnose.oom.evidence import block_of
from legroom.diagnose.report.leaks import advice_on, holder_path
from legroom.memory.events import Oom
from legroom.memory.live.folder import LiveFile
from legroom.memory.live.history import StepHistory
from legroom.memory.live.status import RunStatus
from legroom.observe.session import Session
from legroom.run.process_identity import describe_process
from legroom.show.common.formatting import format_frame
from legroom.units import format_size


class LiveStatusWriter:
    def __init__(
        self, session: Session, failures: Callable[[], Sequence[Oom]], header: Mapping[str, Any]
    ) -> None:
        """`failures` returns the out-of-memory errors so far. `header` is the header of the capture."""
        self._session = session
        self._failures = failures
        self._header = header
        self._started = time.time()
        self._file = LiveFile()
        self._history = StepHistory()

    def write(self) -> None:
        """Write the current state. An error in Legroom stops the updates of the live file, but not the run."""
        self._file.publish(self._status)

    def remove(self) -> None:
        self._file.remove()

    def _status(self) -> RunStatus:
        step, seconds, allocated = self._session.progress
        self._history.add(step, allocated)
        finding, advice = self._latest_finding()
        return describe_process(
            self._header,
            started=self._started,
            step=step,
            seconds_per_step=seconds if seconds > 0 else None,
            trend=self._history.trend,
            finding=finding,
            advice=advice,
            history=self._history.sizes,
            devices=self._session.device_statuses(),
        )

    def _latest_finding(self) -> tuple[str, str]:
        leaks, failures = self._session.leaks, self._failures()
        leak = max(leaks, key=lambda each: each.step) if leaks else None
        if failures and (leak is None or failures[-1].step >= leak.step):
            oom = failures[-1]
            place = f" at {format_frame(oom.frame)}" if oom.frame else ""
            return (
                f"Out of memory at step {oom.step}{place}: tried to allocate {format_size(block_of(oom))}.",
                "",
            )
        if leak is None:
            return "", ""
        code, advice = advice_on(leak)
        return f"{code} {holder_path(leak)}", advice
