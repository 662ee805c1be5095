"""Predicts whether a traced script also fits on a virtual GPU of the same size.

A trace describes the memory that the script needs with CUDA. A virtual GPU (`legroom run --gpu`) runs the operations of
the CPU, which differ in two ways. Dropout saves a mask with the dtype of its input, but CUDA saves a boolean mask. The
workspaces of CUDA libraries do not exist.
"""

from legroom.memory.event_base import Category
from legroom.memory.events import Alloc
from legroom.predict.fit import MIN_MARGIN, available_bytes, fits_without_workspaces
from legroom.predict.requests import replay_requests
from legroom.predict.tracing.trace import Trace

_DROPOUT = "aten.native_dropout"
_FUSED_ATTENTION = "scaled_dot_product"


def fits_virtual_gpu(trace: Trace) -> bool:
    """Return whether a script that fits on a GPU probably also fits on a virtual GPU.

    Attention with dropout needs much more memory on the CPU, because the CPU has no fused kernel for it. A trace does
    not show whether fused attention uses dropout. If the script uses both, half of the memory must stay free.
    """
    instead: dict[int, int] = {}
    masks = 0
    mask: Alloc | None = None
    for event in trace.events:
        if type(event) is not Alloc:
            continue
        if event.category is Category.WORKSPACE:
            instead[event.id] = 0
        elif event.op == _DROPOUT:  # allocates the mask, and then the result
            if mask is None:
                mask = event
                continue
            instead[mask.id] = event.bytes
            masks += 1
        mask = None
    if not masks:
        return fits_without_workspaces(trace, available_bytes(trace))
    requests = list(trace.requests(instead=instead))
    uses_attention = any(type(event) is Alloc and _FUSED_ATTENTION in event.op for event in trace.events)
    extra = replay_requests(requests, None).reserved if uses_attention else MIN_MARGIN
    return replay_requests(requests, available_bytes(trace), extra=extra).failed_at is None
