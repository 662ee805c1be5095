"""A model whose parameters are sharded over ranks (FSDP2), in a step that may have to be given up.

Each micro-batch gathers parameters and scatters gradients by itself: accumulating without that would keep whole gradients,
and a smaller micro-batch could cost more memory. What FSDP2 lacks is a way back from the middle of a pass; `forget` is it.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

try:
    from torch.distributed.fsdp import FSDPModule
except ImportError:  # a build without it: then no model is sharded this way
    FSDPModule = None  # type: ignore[assignment,misc]


class Shards:
    """The FSDP2 modules of the model: each root with what is below it."""

    def __init__(self, roots: list[nn.Module]) -> None:
        self._roots = roots

    def groups(self) -> list[Any]:
        """Every process group in which FSDP2 communicates, in the same order on all ranks; some more than once."""
        meshes = [group for mesh in self.meshes() for group in mesh.get_all_groups()]
        return meshes + [group for root in self._roots for group in _inner_groups(root)]

    def ranks(self) -> set[int]:
        """Every rank that takes part."""
        return {rank for mesh in self.meshes() for rank in mesh.mesh.flatten().tolist()}

    def meshes(self) -> list[Any]:
        """The device meshes of the parameters. Two that are equal may still have groups of their own."""
        found: dict[int, Any] = {}
        for root in self._roots:
            for parameter in root.parameters():
                if isinstance(parameter, DTensor):
                    found.setdefault(id(parameter.device_mesh), parameter.device_mesh)
        return list(found.values())

    def reshard(self) -> None:
        """What a forward pass left gathered is given up: the next one gathers the same as every other did."""
        for root in self._roots:
            root.reshard()  # type: ignore[operator]

    def forget(self) -> None:
        """The step has failed: every parameter is sharded again, and nothing remembers the pass."""
        for root in filter(_was_called, self._roots):
            _reset(root)
            _drop_leftovers(root)


def sharded_roots(model: nn.Module) -> list[nn.Module]:
    """The FSDP2 modules that lie in no other."""
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
    """The groups of each wrapped module, from FSDP2's private state.

    `fully_shard` called without a mesh makes new groups each time, and parameters tell of the first only: they keep one of
    meshes that are equal. Without this, failures in such a model leave the other ranks waiting; give a mesh to be safe.
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
    """FSDP2 sets itself up in the first forward pass, and a reset before that fails in it. (Where its state no longer tells,
    it counts as called.)"""
    return getattr(root._get_fsdp_state(), "_is_root", True) is not None


def _reset(root: Any) -> None:
    """torch 2.13 does this by itself; before, the same by hand on FSDP2's private state.

    Without either (a release that keeps its state elsewhere) a failure in the middle of a pass cannot be recovered:
    the attribute that is missing is named in the error.
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
    """What the reset leaves: gradients that were not reduced yet, to which the next pass would add, and room that was
    taken for parameters whose gathering failed.
    """
    for state in root._get_fsdp_state()._state_ctx.all_states:
        for group in _parameter_groups(state):
            for parameter in group.fsdp_params:
                parameter.free_unsharded_param()
                parameter.unsharded_accumulated_grad = None
                whole: torch.Tensor | None = getattr(parameter, "_unsharded_param", None)
                if whole is not None:
                    whole.grad = None


def _parameter_groups(state: Any) -> list[Any]:
    """One or none before torch 2.13, several since."""
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is not None:
        return list(groups)
    return [state._fsdp_param_group] if state._fsdp_param_group is not None else []
