"""Handles FSDP2 modules in a step that may have to be repeated.

Each micro-batch gathers parameters and reduces gradients separately. If gradients were accumulated without reduction,
they would stay unsharded, and a smaller micro-batch could need more memory. Before torch 2.13, FSDP2 has no public
function that ends a pass early, so `discard` changes its private state.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

try:
    from torch.distributed.fsdp import FSDPModule
except ImportError:  # a build of torch without FSDP2
    FSDPModule = None  # type: ignore[assignment,misc]


class Shards:
    """The FSDP2 modules of a model. `roots` contains the outermost FSDP2 modules."""

    def __init__(self, roots: list[nn.Module]) -> None:
        self._roots = roots

    def groups(self) -> list[Any]:
        """Return every FSDP2 process group, in the same order on all ranks. The result may contain duplicates."""
        meshes = [group for mesh in self.meshes() for group in mesh.get_all_groups()]
        return meshes + [group for root in self._roots for group in _inner_groups(root)]

    def ranks(self) -> set[int]:
        return {rank for mesh in self.meshes() for rank in mesh.mesh.flatten().tolist()}

    def meshes(self) -> list[Any]:
        """Return the device meshes of the parameters. Equal meshes may have different process groups."""
        found: dict[int, Any] = {}
        for root in self._roots:
            for parameter in root.parameters():
                if isinstance(parameter, DTensor):
                    found.setdefault(id(parameter.device_mesh), parameter.device_mesh)
        return list(found.values())

    def reshard(self) -> None:
        """Free the parameters that a forward pass left gathered, so that every forward pass issues the same
        collectives.
        """
        for root in self._roots:
            root.reshard()  # type: ignore[operator]

    def discard(self) -> None:
        """Discard a failed step. Every parameter is resharded, and the state of the pass is reset."""
        for root in filter(_was_called, self._roots):
            _reset(root)
            _drop_leftovers(root)


def sharded_roots(model: nn.Module) -> list[nn.Module]:
    """Return the FSDP2 modules that are not inside another FSDP2 module."""
    if FSDPModule is None:
        return []
    return list(_outermost(model))


def _outermost(module: nn.Module) -> Iterator[nn.Module]:
    if isinstance(module, FSDPModule):
        yield module
    else:
        for child in module.children():
            yield from _outermost(child)


def _inner_groups(root: nn.Module) -> Iterator[Any]:
    """Yield the process groups of each wrapped module, from FSDP2's private state.

    `fully_shard` without a mesh creates a new group at each call, but all parameters with equal meshes refer to the
    first group. A failed rank must complete the collectives of every group. Otherwise, the other ranks hang.
    """
    for module in root.modules():
        if isinstance(module, FSDPModule):
            for parameters in _parameter_groups(module._get_fsdp_state()):
                for info in (parameters.mesh_info, parameters.post_forward_mesh_info):
                    for name in ("shard_process_group", "replicate_process_group"):
                        group = getattr(info, name, None)
                        if group is not None:
                            yield group


def _was_called(root: Any) -> bool:
    """Return True if a forward pass has initialized FSDP2. FSDP2 cannot be reset before its first forward pass.

    If torch has removed the private attribute `_is_root`, the result is True.
    """
    return getattr(root._get_fsdp_state(), "_is_root", True) is not None


def _reset(root: Any) -> None:
    """Reset FSDP2 during a pass. Before torch 2.13, the reset changes FSDP2's private state. If torch has neither its
    own reset function nor this private state, recovery is not possible, and the error names the missing attribute.
    """
    if hasattr(root, "reset_iter_state"):
        root.reset_iter_state()
        return
    idle = _idle_state()
    shared = root._get_fsdp_state()
    comm, context = shared._comm_ctx, shared._state_ctx
    comm.all_gather_state = None
    if hasattr(comm, "reduce_scatter_states"):
        comm.reduce_scatter_states.clear()
    else:
        comm.reduce_scatter_state = None
    comm.post_forward_order.clear()
    for state in context.all_states:
        state._training_state = idle
        for group in _parameter_groups(state):
            result = group._all_gather_result
            if result is not None and result.all_gather_work is not None:
                result.all_gather_work.wait()
            group._all_gather_result = None
            group._post_reduce_event = None
            group._reshard_after_forward_event = None
            group._partial_reduce_output = None
            group._post_forward_indices.clear()
            group._training_state = idle
            group._to_sharded()
    context.iter_forward_root = None
    context.post_backward_final_callback_queued = False


def _idle_state() -> Any:
    from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState

    return TrainingState.IDLE


def _drop_leftovers(root: Any) -> None:
    """Free memory that is still allocated after the reset. The remaining memory contains parameters whose all-gather
    failed, and unreduced gradients, to which the next pass would add.
    """
    for state in root._get_fsdp_state()._state_ctx.all_states:
        for group in _parameter_groups(state):
            for parameter in group.fsdp_params:
                parameter.free_unsharded_param()
                parameter.unsharded_accumulated_grad = None
                unsharded: torch.Tensor | None = getattr(parameter, "_unsharded_param", None)
                if unsharded is not None:
                    unsharded.grad = None


def _parameter_groups(state: Any) -> list[Any]:
    """Return FSDP2's parameter groups. Before torch 2.13, a module has at most one group."""
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is not None:
        return list(groups)
    return [state._fsdp_param_group] if state._fsdp_param_group is not None else []
