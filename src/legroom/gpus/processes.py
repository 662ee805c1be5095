"""Samples processes and the host repeatedly, for `legroom monitor`.

A process may end at any moment, and other users' processes may be hidden. A value that cannot be read is `NA`.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from legroom.gpus.machine import host_usage, processors
from legroom.gpus.nvml import NA, Count, NotAvailable, query

Text = str | NotAvailable
Number = float | NotAvailable


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSample:
    """The state of a process at one moment."""

    pid: int
    user: Text = NA
    name: Text = NA
    command: Text = NA
    state: Text = NA
    """The state of the process, for example `running` or `sleeping`."""
    parent: Count = NA
    threads: Count = NA
    started: Number = NA
    """The start time of the process, in seconds since the epoch."""
    cpu: Number = NA
    """The percentage of one core that the process used since the previous sample."""
    resident: Count = NA


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSample:
    """The processors and the memory of this machine, or of the container if the container has a memory limit."""

    name: str
    cores: int
    cpu: Number
    """The percentage of all cores that was used since the previous sample."""
    load: Number
    """The average number of processes that were ready to run in the last minute."""
    memory_total: Count
    memory_used: Count
    """The memory in use, without cached files."""
    memory_limited: bool
    """True if the values are those of a control group, such as a container, and not of the whole machine."""
    swap_total: Count
    swap_used: Count


class ProcessSampler:
    """Samples the host, and processes given by their IDs.

    CPU use is measured between two samples, so the first sample does not contain the CPU use.
    """

    def __init__(self) -> None:
        self._processes: dict[int, Any] = {}
        self._users: dict[int, Text] = {}
        self._has_read_host = False

    def read(self, pids: Iterable[int]) -> dict[int, ProcessSample]:
        """Return a sample for every process ID. For a hidden or ended process, the sample has no values."""
        import psutil

        wanted = set(pids)
        samples = {}
        for pid in wanted:
            process = self._processes.get(pid)
            is_new = process is None or not query(process.is_running)
            if is_new:
                process = query(psutil.Process, pid)
                self._users.pop(pid, None)
                self._processes[pid] = process
            sample = ProcessSample(pid=pid) if process is NA else self._sample(pid, process)
            samples[pid] = replace(sample, cpu=NA) if is_new else sample
        for pid in set(self._processes) - wanted:
            del self._processes[pid]
            self._users.pop(pid, None)
        return samples

    def host(self) -> HostSample:
        import psutil

        usage, swap = host_usage(), query(psutil.swap_memory)
        total, used = usage.total, usage.used_of_limit
        if not isinstance(total, NotAvailable) and not isinstance(usage.available, NotAvailable):
            used = total - usage.available
        limited = not isinstance(usage.limit, NotAvailable) and (
            isinstance(total, NotAvailable) or usage.limit < total
        )
        if limited:
            total, used = usage.limit, usage.used_of_limit
            if not isinstance(used, NotAvailable) and not isinstance(usage.cache_of_limit, NotAvailable):
                used -= usage.cache_of_limit
        cpu, was_read, self._has_read_host = query(psutil.cpu_percent, None), self._has_read_host, True
        load = query(os.getloadavg) if hasattr(os, "getloadavg") else NA
        return HostSample(
            name=os.uname().nodename if hasattr(os, "uname") else "",
            cores=processors(),
            cpu=cpu if was_read else NA,
            load=NA if isinstance(load, NotAvailable) else load[0],
            memory_total=total,
            memory_used=used,
            memory_limited=limited,
            swap_total=NA if isinstance(swap, NotAvailable) else swap.total,
            swap_used=NA if isinstance(swap, NotAvailable) else swap.used,
        )

    def _sample(self, pid: int, process: Any) -> ProcessSample:
        if pid not in self._users:
            self._users[pid] = query(process.username)
        with process.oneshot():
            command = query(process.cmdline)
            memory = query(process.memory_info)
            return ProcessSample(
                pid=pid,
                user=self._users[pid],
                name=query(process.name),
                command=command if isinstance(command, NotAvailable) else " ".join(command),
                state=query(process.status),
                parent=query(process.ppid),
                threads=query(process.num_threads),
                started=query(process.create_time),
                cpu=query(process.cpu_percent, None),
                resident=NA if isinstance(memory, NotAvailable) else memory.rss,
            )
