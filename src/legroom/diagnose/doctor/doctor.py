"""Implements `legroom doctor`: runs all checks on this machine, and tests torch in a separate process."""

from dataclasses import asdict, dataclass
from typing import Any

from legroom import schemas
from legroom.diagnose.doctor.checks import MACHINE_CHECKS, DoctorCheck, computation, libraries, torch_build
from legroom.diagnose.doctor.machine import Machine, inspect_machine
from legroom.diagnose.doctor.torch_check import TorchFacts, check_torch
from legroom.findings import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The results of all checks."""

    checks: tuple[DoctorCheck, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for check in self.checks for finding in check.findings)

    @property
    def is_ok(self) -> bool:
        return not self.findings

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": schemas.DOCTOR,
            "sound": self.is_ok,
            "checks": [{"name": check.name, "value": check.value} for check in self.checks],
            "findings": [asdict(finding) for finding in self.findings],
        }


def diagnose(machine: Machine | None = None, torch: TorchFacts | None = None) -> Diagnosis:
    facts = machine if machine is not None else inspect_machine()
    torch_facts = torch if torch is not None else check_torch()
    return Diagnosis(
        checks=(
            torch_build(facts, torch_facts),
            libraries(facts, torch_facts),
            *(check(facts) for check in MACHINE_CHECKS),
            computation(torch_facts),
        )
    )
