"""`Finding` is immutable and converts to JSON."""

import json
from dataclasses import FrozenInstanceError

import pytest

from legroom.findings import Finding

FINDING = Finding(
    code="LG101",
    message="The list `losses` keeps 35 KiB more at each step.",
    fix="Append `loss.item()`.",
    file="train.py",
    line=30,
    bytes=4096,
    saves=2048,
    evidence={"nodes_per_step": 43},
)


def test_json_contains_every_field() -> None:
    assert json.loads(json.dumps(FINDING.as_dict())) == {
        "code": "LG101",
        "message": "The list `losses` keeps 35 KiB more at each step.",
        "fix": "Append `loss.item()`.",
        "file": "train.py",
        "line": 30,
        "bytes": 4096,
        "saves": 2048,
        "evidence": {"nodes_per_step": 43},
    }


def test_location_and_sizes_are_optional() -> None:
    finding = Finding(code="LG901", message="The driver is old.", fix="Update it.")
    assert (finding.file, finding.line, finding.bytes, finding.saves, finding.evidence) == (
        None,
        None,
        0,
        0,
        {},
    )


def test_a_finding_is_immutable() -> None:
    with pytest.raises(FrozenInstanceError):
        FINDING.code = "LG102"  # type: ignore[misc]


def test_findings_do_not_share_evidence() -> None:
    first = Finding(code="LG101", message="", fix="")
    second = Finding(code="LG101", message="", fix="")
    assert first.evidence is not second.evidence


def test_as_dict_returns_a_copy() -> None:
    FINDING.as_dict()["evidence"]["nodes_per_step"] = 0
    assert FINDING.evidence == {"nodes_per_step": 43}
