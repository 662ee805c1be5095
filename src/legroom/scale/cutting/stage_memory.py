"""One stage's step, rehearsed on a device without data: the passes of all micro-batches in the order of the schedule.

The order and the buffers are those of `torch.distributed.pipelining`: a buffer for each micro-batch's inputs and for the gradients that
come back, the last stage's loss, gradients summed over micro-batches, then the optimizer.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from legroom.memory.events import Alloc, Event, Free
from legroom.predict.tracing.copying import DeviceCopies, loss_of
from legroom.scale import trees
from legroom.scale.cutting.balance import Costs, Traffic, Weight
from legroom.scale.cutting.forward_graph import Entry, Named, Score, input_tensors, tensors_of, without_data
from legroom.scale.cutting.release_weights import let_go
from legroom.scale.cutting.stages import Part, Player, Sheet
from legroom.scale.optimizers import rebound
from legroom.scale.prediction.step_trace import Likeness, MakeStep, traced, undisturbed
from legroom.scale.prediction.strategy_steps import optimizer_for


def traffic(schedule: str, stages: int, micro_batches: int) -> Traffic:
    """GPipe holds all micro-batches in every stage; 1F1B as many as there are stages from here on."""
    if schedule == "gpipe" or micro_batches < stages:
        return Traffic((micro_batches,) * stages, micro_batches)
    return Traffic(tuple(min(micro_batches, stages - stage) for stage in range(stages)), micro_batches)


def order(ahead: int, count: int) -> list[tuple[bool, int]]:
    """(is it forward, which micro-batch) as a stage does them: `ahead` forward passes before the first backward, `count` in all."""
    steps = [(True, number) for number in range(ahead)]
    for number in range(count):
        steps.append((False, number))
        if ahead + number < count:
            steps.append((True, ahead + number))
    return steps


def stage_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    score: Score,
    parts: Sequence[Part],
    stage: int,
    flow: Traffic,
    micro: Any,
) -> MakeStep:
    """A step of one stage; `micro`: one micro-batch, inputs first and target last."""
    part, is_last = parts[stage], stage == len(parts) - 1
    bare, bare_optimizer = without_data(model, optimizer)
    homes = dict(tensors_of(bare))
    mine = part.tensors(bare)
    kept = {id(homes[name]) for name in mine}
    rebound(
        bare_optimizer,
        {each: None for each in homes.values() if isinstance(each, nn.Parameter) and id(each) not in kept},
    )
    let_go(bare, set(homes) - mine)

    def make(onto: DeviceCopies) -> Callable[[], None]:
        placed, placed_optimizer = onto.copied((bare, bare_optimizer))
        steps = optimizer_for(placed, placed_optimizer)
        given = onto.copied(micro)
        player = Player(score, part, placed, torch.device("cuda", 0))
        receives, sends = player.likes(part.receives), player.likes(part.sends)
        arrive = [[_buffer(like) for like in receives] for _ in range(flow.buffered)]
        come_back = [
            [] if is_last else [_buffer(like) for like in sends if like.requires_grad]
            for _ in range(flow.buffered)
        ]

        def forward(number: int, rows: Any) -> tuple[list[torch.Tensor], Sequence[torch.Tensor]]:
            """What backward starts from, and what waits for it as well: torch's stage holds its outputs until then."""
            received = [
                each.requires_grad_(like.requires_grad)
                for each, like in zip(arrive[number], receives, strict=True)
            ]
            sent = player.play(received, input_tensors(*inputs_of(rows)))
            loss = [loss_of(lambda *_, **__: player.result(sent), rows)] if is_last else []
            return loss or [each for each in sent if each.requires_grad], sent

        # The first step makes optimizer state; what the second holds is there once the pipeline is full: more passes add nothing.
        ahead = flow.in_flight[stage]
        orders = iter([order(1, 1), order(ahead, min(ahead + 1, flow.buffered))])

        def passes() -> None:
            batch = [trees.tree_map_only(torch.Tensor, torch.empty_like, given) for _ in range(flow.buffered)]
            waiting: dict[int, Any] = {}
            going_back: list[Any] = []  # gradients on their way to the stage before
            for is_forward, number in next(orders):
                if is_forward:
                    waiting[number] = forward(number, batch[number])
                else:
                    outputs, held = waiting.pop(number)
                    torch.autograd.backward(outputs, [None] if is_last else come_back[number])
                    del outputs, held
                    going_back = [each.grad for each in arrive[number]]
                    for each in arrive[number]:
                        each.grad = None
            del going_back

        def step() -> None:
            passes()
            steps.step()
            steps.zero_grad()

        return step

    return make


def costs(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, sheet: Sheet, micro: Any, like: Likeness
) -> Costs:
    """What every position costs, from one traced step of the whole model."""
    score = sheet.score
    whole = Part(
        tuple(sheet.single),
        (),
        tuple(sorted({slot.number for slot in score.whole.gives()})),
        tuple(range(len(score.inputs))),
    )

    def trace() -> Costs:
        with traced(like) as (events, _):
            onto = DeviceCopies()
            placed, placed_optimizer = onto.copied((model, optimizer))
            steps = optimizer_for(placed, placed_optimizer)
            batch = onto.copied(micro)
            player = Player(score, whole, placed, torch.device("cuda", 0))
            begins = [len(events)]

            def mark(entry: Entry) -> None:
                begins.append(len(events))

            sent = player.play((), input_tensors(*inputs_of(batch)), mark)
            loss = loss_of(lambda *_, **__: player.result(sent), batch)
            kept = _kept(events, begins)
            loss.backward()
            steps.step()
            weights = _weights(sheet, placed, steps)
        return Costs(kept, weights)

    return undisturbed(trace)


def _kept(events: Sequence[Event], begins: Sequence[int]) -> list[int]:
    """Bytes made between each two marks that are there at the end of the forward pass."""
    gone = {event.id for event in events if type(event) is Free}
    kept = []
    for begin, end in itertools.pairwise(begins):
        made = [event for event in events[begin:end] if type(event) is Alloc and event.id not in gone]
        kept.append(sum(event.block_bytes for event in made))
    return kept


def _weights(sheet: Sheet, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[list[Weight]]:
    """Tensors read at every position, with gradient and optimizer state where they are trained."""
    homes = dict(tensors_of(model))
    found = []
    for entry in sheet.single:
        names = {leaf.name for leaf in entry.reads() if isinstance(leaf, Named)}
        if isinstance(entry.call, str):
            names.update(f"{entry.call}.{name}" for name, _ in tensors_of(model.get_submodule(entry.call)))
        tensors = {id(homes[name]): homes[name] for name in sorted(names)}
        found.append([_weight(key, tensor, optimizer) for key, tensor in tensors.items()])
    return found


def _weight(which: int, tensor: torch.Tensor, optimizer: torch.optim.Optimizer) -> Weight:
    """An optimizer that works on lists of tensors makes one more of each while it does."""
    size = tensor.numel() * tensor.element_size()
    if not tensor.requires_grad:
        return Weight(which, size, 0)
    state = optimizer.state.get(tensor, {})
    held = sum(
        each.numel() * each.element_size() for each in state.values() if isinstance(each, torch.Tensor)
    )
    return Weight(which, 2 * size + held, size)


def inputs_of(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What of a batch the model is given: all of a mapping, of a sequence all but the target at its end."""
    if isinstance(batch, dict):
        return (), dict(batch)
    if isinstance(batch, list | tuple):
        return (tuple(batch[:-1]) if len(batch) > 1 else tuple(batch)), {}
    return (batch,), {}


def _buffer(like: Any) -> torch.Tensor:
    return torch.empty(like.shape, dtype=like.dtype, device="cuda")
