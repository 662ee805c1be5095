"""Is this set-up sound? Every check of the machine, then torch itself in a process of its own."""

from dataclasses import asdict, dataclass
from typing import Any

from legroom import schemas
from legroom.diagnose.doctor.checks import MACHINE_CHECKS, DoctorCheck, computation, libraries, torch_build
from legroom.diagnose.doctor.machine import Machine, inspect_machine
from legroom.diagnose.doctor.torch_check import TorchFacts, check_torch
from legroom.findings import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was looked at, and what was found."""

    checks: tuple[DoctorCheck, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for check in self.checks for finding in check.findings)

    @property
    def is_sound(self) -> bool:
        return not self.findings

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": schemas.DOCTOR,
            "sound": self.is_sound,
            "checks": [{"name": check.name, "value": check.value} for check in self.checks],
            "findings": [asdict(finding) for finding in self.findings],
        }


def diagnose(machine: Machine | None = None, torch: TorchFacts | None = None) -> Diagnosis:
    """Look at everything. Takes as long as importing torch and one CUDA context per GPU."""
    seen = machine if machine is not None else inspect_machine()
    asked = torch if torch is not None else check_torch()
    return Diagnosis(
        checks=(
            torch_build(seen, asked),
            libraries(seen, asked),
            *(check(seen) for check in MACHINE_CHECKS),
            computation(asked),
        )
    )
