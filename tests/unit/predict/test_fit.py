"""What the safe bound adds to an estimate."""

from legroom.gpus.catalog import find_gpu
from legroom.memory.events import Alloc, Category, Phase
from legroom.predict.fit import MARGIN, replay, safe_reserved
from legroom.predict.tracing.trace import Trace
from legroom.units import MiB


def trace_of(size: int) -> Trace:
    asked = Alloc(0.0, 1, size, size, 0, 0, Category.PARAMETER, Phase.FORWARD, 0, "", None, "aten.empty")
    return Trace(gpu=find_gpu("h200"), mode="fake", events=[asked])


def test_a_large_run_gets_a_share_of_its_peak() -> None:
    trace = trace_of(2000 * MiB)

    assert safe_reserved(trace, replay(trace)) == 2000 * MiB + round(MARGIN * 2000 * MiB)


def test_a_small_run_gets_two_pieces_in_which_memory_is_taken() -> None:
    trace = trace_of(20 * MiB)

    assert safe_reserved(trace, replay(trace)) == 24 * MiB


def test_what_is_in_doubt_comes_on_top() -> None:
    trace = trace_of(2000 * MiB)
    trace.doubt = 300 * MiB

    assert safe_reserved(trace, replay(trace)) == 2300 * MiB + round(MARGIN * 2000 * MiB)
