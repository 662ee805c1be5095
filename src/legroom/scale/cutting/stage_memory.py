"""Builds the step of one stage. The step is traced to predict the memory of the stage, and contains the passes of all
micro-batches in the order of the schedule.

The order and the buffers are the same as in `torch.distributed.pipelining`. Each micro-batch has a buffer for its
inputs and a buffer for its received gradients. The last stage computes the loss. Gradients are summed over
micro-batches, and then the optimizer runs.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from legroom.memory.events import Alloc, Event, Free
from legroom.predict.tracing.copying import DeviceCopies, loss_of
from legroom.scale import trees
from legroom.scale.cutting.balance import MicroBatchFlow, PositionCosts, WeightCost
from legroom.scale.cutting.forward_graph import (
    ForwardGraph,
    GraphNode,
    ModelTensor,
    SlotInfo,
    input_tensors,
    meta_copies,
    named_tensors,
)
from legroom.scale.cutting.release_weights import release_tensors
from legroom.scale.cutting.stages import GraphPartitioner, StageProgram, StageRunner
from legroom.scale.optimizers import replace_parameters
from legroom.scale.prediction.step_trace import DeviceModel, MakeStep, outside_virtual_gpu, trace_devices
from legroom.scale.prediction.strategy_steps import optimizer_for


def micro_batch_flow(schedule: str, stages: int, micro_batches: int) -> MicroBatchFlow:
    """Return the number of micro-batches that each stage keeps in memory. With GPipe, every stage keeps all
    micro-batches. With 1F1B, a stage keeps one micro-batch for itself and one for each later stage.
    """
    if schedule == "gpipe" or micro_batches < stages:
        return MicroBatchFlow((micro_batches,) * stages, micro_batches)
    return MicroBatchFlow(tuple(min(micro_batches, stages - stage) for stage in range(stages)), micro_batches)


def pass_order(ahead: int, count: int) -> list[tuple[bool, int]]:
    """Return the order of the passes in a stage. Each pass is a pair: True for a forward pass or False for a backward
    pass, and the index of the micro-batch. `ahead` forward passes come before the first backward pass. `count` is the
    number of micro-batches.
    """
    passes = [(True, index) for index in range(ahead)]
    for index in range(count):
        passes.append((False, index))
        if ahead + index < count:
            passes.append((True, ahead + index))
    return passes


def stage_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    graph: ForwardGraph,
    programs: Sequence[StageProgram],
    stage: int,
    flow: MicroBatchFlow,
    micro: Any,
) -> MakeStep:
    """Return a training step of one pipeline stage. `micro` is one micro-batch, with the inputs first and the target
    last."""
    program, is_last = programs[stage], stage == len(programs) - 1
    meta_model, meta_optimizer = meta_copies(model, optimizer)
    tensors = dict(named_tensors(meta_model))
    own = program.tensors(meta_model)
    own_ids = {id(tensors[name]) for name in own}
    replace_parameters(
        meta_optimizer,
        {
            each: None
            for each in tensors.values()
            if isinstance(each, nn.Parameter) and id(each) not in own_ids
        },
    )
    release_tensors(meta_model, set(tensors) - own)

    def make(onto: DeviceCopies) -> Callable[[], None]:
        copied, copied_optimizer = onto.copied((meta_model, meta_optimizer))
        stage_optimizer = optimizer_for(copied, copied_optimizer)
        copied_micro = onto.copied(micro)
        runner = StageRunner(graph, program, copied, torch.device("cuda", 0))
        receives, sends = runner.slot_infos(program.receives), runner.slot_infos(program.sends)
        input_buffers = [[_buffer(info) for info in receives] for _ in range(flow.buffered)]
        gradient_buffers = [
            [] if is_last else [_buffer(info) for info in sends if info.requires_grad]
            for _ in range(flow.buffered)
        ]

        def forward(index: int, batch: Any) -> tuple[list[torch.Tensor], Sequence[torch.Tensor]]:
            """Return the tensors that start the backward pass, and all tensors that the stage sends. PyTorch's pipeline
            stage keeps the sent tensors until the backward pass.
            """
            received = [
                each.requires_grad_(info.requires_grad)
                for each, info in zip(input_buffers[index], receives, strict=True)
            ]
            sent = runner.run(received, input_tensors(*model_inputs(batch)))
            loss = [loss_of(lambda *_, **__: runner.result(sent), batch)] if is_last else []
            return loss or [each for each in sent if each.requires_grad], sent

        # The first step creates optimizer state. The second step reaches its peak once the pipeline is full, so more
        # passes are not needed.
        ahead = flow.in_flight[stage]
        orders = iter([pass_order(1, 1), pass_order(ahead, min(ahead + 1, flow.buffered))])

        def passes() -> None:
            batches = [
                trees.tree_map_only(torch.Tensor, torch.empty_like, copied_micro)
                for _ in range(flow.buffered)
            ]
            pending: dict[int, Any] = {}
            sent_gradients: list[Any] = []  # being sent to the previous stage
            for is_forward, index in next(orders):
                if is_forward:
                    pending[index] = forward(index, batches[index])
                else:
                    outputs, sent = pending.pop(index)
                    torch.autograd.backward(outputs, [None] if is_last else gradient_buffers[index])
                    del outputs, sent
                    sent_gradients = [each.grad for each in input_buffers[index]]
                    for each in input_buffers[index]:
                        each.grad = None
            del sent_gradients

        def step() -> None:
            passes()
            stage_optimizer.step()
            stage_optimizer.zero_grad()

        return step

    return make


def position_costs(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    partitioner: GraphPartitioner,
    micro: Any,
    device_model: DeviceModel,
) -> PositionCosts:
    """Trace one step of the whole model, and return the memory cost of each operation in the graph."""
    graph = partitioner.graph
    whole_model = StageProgram(
        tuple(partitioner.leaves),
        (),
        tuple(sorted({slot.number for slot in graph.root.outputs()})),
        tuple(range(len(graph.inputs))),
    )

    def trace() -> PositionCosts:
        with trace_devices(device_model) as (events, _):
            onto = DeviceCopies()
            copied, copied_optimizer = onto.copied((model, optimizer))
            traced_optimizer = optimizer_for(copied, copied_optimizer)
            batch = onto.copied(micro)
            runner = StageRunner(graph, whole_model, copied, torch.device("cuda", 0))
            marks = [len(events)]

            def mark(node: GraphNode) -> None:
                marks.append(len(events))

            sent = runner.run((), input_tensors(*model_inputs(batch)), mark)
            loss = loss_of(lambda *_, **__: runner.result(sent), batch)
            saved = _saved_bytes(events, marks)
            loss.backward()
            traced_optimizer.step()
            weights = _weight_costs(partitioner, copied, traced_optimizer)
        return PositionCosts(saved, weights)

    return outside_virtual_gpu(trace)


def _saved_bytes(events: Sequence[Event], marks: Sequence[int]) -> list[int]:
    """Return the number of bytes that were allocated between each pair of consecutive indices in `marks` and never
    freed. `marks` are indices in `events`.
    """
    freed = {event.id for event in events if type(event) is Free}
    saved = []
    for begin, end in itertools.pairwise(marks):
        allocated = [event for event in events[begin:end] if type(event) is Alloc and event.id not in freed]
        saved.append(sum(event.block_bytes for event in allocated))
    return saved


def _weight_costs(
    partitioner: GraphPartitioner, model: nn.Module, optimizer: torch.optim.Optimizer
) -> list[list[WeightCost]]:
    """Return the costs of the model's tensors that each operation in the graph reads."""
    by_name = dict(named_tensors(model))
    costs = []
    for node in partitioner.leaves:
        names = {leaf.name for leaf in node.inputs() if isinstance(leaf, ModelTensor)}
        if isinstance(node.call, str):
            names.update(f"{node.call}.{name}" for name, _ in named_tensors(model.get_submodule(node.call)))
        tensors = {id(by_name[name]): by_name[name] for name in sorted(names)}
        costs.append([_weight_cost(key, tensor, optimizer) for key, tensor in tensors.items()])
    return costs


def _weight_cost(key: int, tensor: torch.Tensor, optimizer: torch.optim.Optimizer) -> WeightCost:
    """Return the memory cost of a weight tensor. The cost of a trained tensor includes its gradient, its optimizer
    state, and a temporary tensor of the same size, which a multi-tensor optimizer allocates.
    """
    size = tensor.numel() * tensor.element_size()
    if not tensor.requires_grad:
        return WeightCost(key, size, 0)
    state = optimizer.state.get(tensor, {})
    state_bytes = sum(
        each.numel() * each.element_size() for each in state.values() if isinstance(each, torch.Tensor)
    )
    return WeightCost(key, 2 * size + state_bytes, size)


def model_inputs(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the model's arguments from a batch: all entries of a dict, or all items of a sequence except the last one
    (the target).
    """
    if isinstance(batch, dict):
        return (), dict(batch)
    if isinstance(batch, list | tuple):
        return (tuple(batch[:-1]) if len(batch) > 1 else tuple(batch)), {}
    return (batch,), {}


def _buffer(info: SlotInfo) -> torch.Tensor:
    return torch.empty(info.shape, dtype=info.dtype, device="cuda")
