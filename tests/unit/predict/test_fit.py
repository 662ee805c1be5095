"""The margin that the safe bound adds to an estimate."""

from legroom.gpus.catalog import find_gpu
from legroom.memory.event_base import Category, Phase
from legroom.memory.events import Alloc
from legroom.predict.fit import MARGIN, replay, safe_reserved, verdict
from legroom.predict.tracing.trace import Trace
from legroom.predict.uncertainty import version_margin, version_note
from legroom.units import MiB


def trace_of(size: int) -> Trace:
    allocation = Alloc(0.0, 1, size, size, 0, 0, Category.PARAMETER, Phase.FORWARD, 0, "", None, "aten.empty")
    return Trace(gpu=find_gpu("h200"), mode="fake", events=[allocation])


def test_the_margin_of_a_large_run_is_a_fraction_of_its_peak() -> None:
    trace = trace_of(2000 * MiB)

    assert safe_reserved(trace, replay(trace)) == 2000 * MiB + round(MARGIN * 2000 * MiB)


def test_the_margin_of_a_small_run_is_two_segments() -> None:
    trace = trace_of(20 * MiB)

    assert safe_reserved(trace, replay(trace)) == 24 * MiB


def test_the_known_uncertainty_is_added() -> None:
    trace = trace_of(2000 * MiB)
    trace.uncertain_bytes = 300 * MiB

    assert safe_reserved(trace, replay(trace)) == 2300 * MiB + round(MARGIN * 2000 * MiB)


def test_versions_that_the_rules_were_not_measured_with_widen_the_bound() -> None:
    trace = trace_of(2000 * MiB)
    bounds = []
    for differing in ({}, {"torch": "2.13"}, {"torch": "2.13", "cuDNN": "9.21"}):
        trace.differing_versions = differing
        bounds.append(safe_reserved(trace, replay(trace)))

    assert bounds == [
        2000 * MiB + round(share * 2000 * MiB) for share in (MARGIN, MARGIN + 0.02, MARGIN + 0.06)
    ]


def test_a_run_that_fits_only_within_the_narrow_bound_is_uncertain_with_other_versions() -> None:
    trace = trace_of(2000 * MiB)
    trace.gpu = find_gpu(safe_reserved(trace, replay(trace)))

    assert verdict(trace, replay(trace)) == "fits"
    trace.differing_versions = {"cuDNN": "9.21"}
    assert verdict(trace, replay(trace)) == "uncertain"


def test_other_versions_are_reported_in_one_line() -> None:
    assert version_note({"torch": "2.13", "cuDNN": "9.21"}) == (
        "The CUDA rules are based on measurements with torch 2.11 and cuDNN 9.19 on an NVIDIA H200, but torch 2.13 and "
        "cuDNN 9.21 are installed, so the safe bound is 6% higher"
    )
    assert ", but torch 2.13 is installed, so the safe bound is 2% higher" in version_note({"torch": "2.13"})
    assert version_margin({}) == 0
