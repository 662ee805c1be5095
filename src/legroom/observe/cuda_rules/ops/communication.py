"""Collective operations: NCCL keeps buffers of its own, outside of PyTorch's allocator, from the first one on.

They are no request of the trace, so they are told as a note, and whoever says what the device holds counts them
(`predict.fit.beside`).
"""

from legroom.observe.cuda_rules.plan import Call, Plan, Rule
from legroom.observe.notes import COMMUNICATION


def _collective(call: Call) -> Plan:
    return Plan((), (COMMUNICATION,))


RULES: dict[str, Rule] = {
    f"c10d::{name}": _collective
    for name in (
        "allreduce_", "broadcast_", "allgather_", "_allgather_base_", "reduce_scatter_", "_reduce_scatter_base_", "alltoall_base_",
        "reduce_", "allreduce_coalesced_", "allgather_into_tensor_coalesced_", "reduce_scatter_tensor_coalesced_",
    )
}  # fmt: skip
