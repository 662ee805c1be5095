"""What this machine says about the causes of an error: those of the doctor's checks that bear on it, and the memory free now.

Nothing here imports torch, so that `legroom explain` answers at once.
"""

from collections.abc import Callable, Iterator

from legroom.diagnose.doctor.checks import (
    DoctorCheck,
    allocator,
    container,
    divided,
    driver,
    health,
    limits,
    others,
    shadowing,
    shared_memory,
    torch_build,
    visible,
)
from legroom.diagnose.doctor.machine import Machine, inspect_machine
from legroom.gpus.machine import NotAvailable
from legroom.units import format_size


def check_machine(code: str, machine: Machine | None = None) -> tuple[str, ...]:
    """What this machine says about the causes of an error, in sentences."""
    wanted = _ABOUT.get(code, ())
    if not wanted:
        return ()
    seen = machine if machine is not None else inspect_machine()
    if not seen.gpus and not seen.driver_trouble and all(check in _ONLY_GPU for check in wanted):
        return ("No NVIDIA GPU is here, so nothing about one could be checked.",)
    return tuple(_sentences(seen, wanted))


def _sentences(machine: Machine, wanted: tuple[Callable[[Machine], DoctorCheck], ...]) -> Iterator[str]:
    for check in wanted:
        if check in _ONLY_GPU and not machine.gpus:
            continue
        done = check(machine)
        yield f"{done.name}: {done.value}"
        for finding in done.findings:
            yield f"{finding.code}: {finding.message}. {finding.fix[:1].upper()}{finding.fix[1:]}."


def free_memory(machine: Machine) -> DoctorCheck:
    told = [
        f"GPU {gpu.index} {format_size(gpu.total - gpu.used)} of {format_size(gpu.total)}"
        for gpu in machine.gpus
        if not isinstance(gpu.total, NotAvailable) and not isinstance(gpu.used, NotAvailable)
    ]
    return DoctorCheck(name="free now", value=", ".join(told) or "not told")


_ONLY_GPU = (free_memory, divided, others, health)
_FULL = (free_memory, others, divided, allocator)
_LIBRARIES = (driver, torch_build, shadowing)
_ABOUT: dict[str, tuple[Callable[[Machine], DoctorCheck], ...]] = {
    "LG700": _FULL,
    "LG701": (*_FULL, *_LIBRARIES),
    "LG702": (container,),
    "LG703": (shared_memory,),
    "LG704": (container, limits),
    "LG705": (container,),
    "LG706": (*_FULL, driver, torch_build, shared_memory),
    "LG720": _LIBRARIES,
    "LG721": _LIBRARIES,
    "LG722": (driver, torch_build),
    "LG723": (driver, torch_build),
    "LG724": (driver, torch_build, visible),
    "LG725": (driver, health),
    "LG726": _LIBRARIES,
    "LG728": _LIBRARIES,
    "LG729": _LIBRARIES,
    "LG731": (shared_memory, limits),
    "LG740": (shared_memory, container),
    "LG742": (limits,),
}
