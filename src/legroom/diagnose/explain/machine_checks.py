"""The `legroom doctor` checks that are relevant to an error, and the memory that is free now.

This module does not import torch, so that `legroom explain` starts quickly.
"""

from collections.abc import Callable, Iterator

from legroom.diagnose.doctor.checks import (
    DoctorCheck,
    allocator,
    driver,
    health,
    host_memory,
    library_path,
    limits,
    mig,
    other_processes,
    shared_memory,
    torch_build,
    visible_gpus,
)
from legroom.diagnose.doctor.machine import Machine, inspect_machine
from legroom.gpus.nvml import NotAvailable
from legroom.units import format_size


def check_machine(code: str, machine: Machine | None = None) -> tuple[str, ...]:
    """Return this machine's check results that are relevant to an error code, one sentence each."""
    checks = _CHECKS.get(code, ())
    if not checks:
        return ()
    facts = machine if machine is not None else inspect_machine()
    if not facts.gpus and not facts.driver_error and all(check in _GPU_CHECKS for check in checks):
        return ("This machine has no NVIDIA GPU, so GPU checks were skipped.",)
    return tuple(_sentences(facts, checks))


def _sentences(machine: Machine, checks: tuple[Callable[[Machine], DoctorCheck], ...]) -> Iterator[str]:
    for check in checks:
        if check in _GPU_CHECKS and not machine.gpus:
            continue
        result = check(machine)
        yield f"{result.name}: {result.value}"
        for finding in result.findings:
            yield f"{finding.code}: {finding.message} {finding.fix}"


def free_memory(machine: Machine) -> DoctorCheck:
    free = [
        f"GPU {gpu.index} {format_size(gpu.total - gpu.used)} of {format_size(gpu.total)}"
        for gpu in machine.gpus
        if not isinstance(gpu.total, NotAvailable) and not isinstance(gpu.used, NotAvailable)
    ]
    return DoctorCheck(name="free now", value=", ".join(free) or "unknown")


_GPU_CHECKS = (free_memory, mig, other_processes, health)
_MEMORY_CHECKS = (free_memory, other_processes, mig, allocator)
_LIBRARY_CHECKS = (driver, torch_build, library_path)
_CHECKS: dict[str, tuple[Callable[[Machine], DoctorCheck], ...]] = {
    "LG700": _MEMORY_CHECKS,
    "LG701": (*_MEMORY_CHECKS, *_LIBRARY_CHECKS),
    "LG702": (host_memory,),
    "LG703": (shared_memory,),
    "LG704": (host_memory, limits),
    "LG705": (host_memory,),
    "LG706": (*_MEMORY_CHECKS, driver, torch_build, shared_memory),
    "LG720": _LIBRARY_CHECKS,
    "LG721": _LIBRARY_CHECKS,
    "LG722": (driver, torch_build),
    "LG723": (driver, torch_build),
    "LG724": (driver, torch_build, visible_gpus),
    "LG725": (driver, health),
    "LG726": _LIBRARY_CHECKS,
    "LG728": _LIBRARY_CHECKS,
    "LG729": _LIBRARY_CHECKS,
    "LG731": (shared_memory, limits),
    "LG740": (shared_memory, host_memory),
    "LG742": (limits,),
}
