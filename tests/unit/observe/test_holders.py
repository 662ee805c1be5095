"""Who holds device memory at one moment: variables, graphs, and calls that are still at work."""

import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from legroom.memory.events import Event, Frame, Holder, Note
from legroom.memory.ledger import Ledger
from legroom.observe.holders import Made, Survey, find_holders
from legroom.observe.virtual.gpu import VirtualGPU
from legroom.units import MiB

ELSEWHERE = Frame("train.py", 3, "main")
HERE = Frame("train.py", 7, "main")


def held_at_failure(events: list[Event]) -> tuple[dict[str, Holder], float]:
    """Who held what, and the share of all that was alive."""
    reached = next(int(event.text) for event in events if isinstance(event, Note) and event.kind == "reached")
    alive = sum(each.block_bytes for each in Ledger(events).at_oom().live)
    return {event.path: event for event in events if isinstance(event, Holder)}, reached / alive


def test_what_a_call_has_made_so_far_is_held_by_the_call() -> None:
    events: list[Event] = []

    def forward() -> None:
        model = nn.LSTM(32, 256, num_layers=4).cuda()
        model(torch.ones(16, 256, 32, device="cuda"))

    with VirtualGPU("40MiB", sink=events.append), pytest.raises(torch.OutOfMemoryError):
        forward()
    held, share = held_at_failure(events)
    call = held["(the call at work, in LSTM)"]
    assert call.bytes > 4 * MiB
    assert call.frame is not None
    assert (call.frame.function, call.frame.line) == ("forward", forward.__code__.co_firstlineno + 2)
    assert share > 0.98


def test_what_is_computed_again_is_held_by_the_backward_pass() -> None:
    events: list[Event] = []
    block = nn.Sequential(
        *(nn.Sequential(nn.Linear(64, 1024), nn.GELU(), nn.Linear(1024, 64)) for _ in range(6))
    )

    def train() -> None:
        model = block.cuda()
        loss = checkpoint(model, torch.ones(1024, 64, device="cuda"), use_reentrant=False).sum()
        loss.backward()

    with VirtualGPU("40MiB", sink=events.append), pytest.raises(torch.OutOfMemoryError):
        train()
    held, share = held_at_failure(events)
    (backward,) = [each for path, each in held.items() if path.startswith("(the backward pass at work")]
    assert backward.bytes > 8 * MiB
    assert backward.frame is not None
    assert backward.frame.line == train.__code__.co_firstlineno + 3
    assert share > 0.98


def test_the_inputs_of_a_checkpointed_block_are_held_by_the_graph_behind_it() -> None:
    def measure(tensor: torch.Tensor) -> tuple[int, int]:
        return tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()

    def train(model: nn.Module) -> list[Holder]:
        out = checkpoint(model, torch.ones(8, 4) * 2, use_reentrant=False)
        assert out.shape == (8, 4)
        return find_holders(sys._getframe(), measure, most=100)

    (out,) = [each for each in train(nn.Linear(4, 4)) if each.path == "out (Tensor)"]
    assert out.bytes >= 2 * 8 * 4 * 4


def survey(**changes: Any) -> Survey:
    return Survey([], {}, {}, [HERE], None)._replace(**changes)


def test_a_call_that_is_done_holds_nothing() -> None:
    assert survey().holders([Made(1, 512, ELSEWHERE, False)]).reached == 0


def test_what_a_variable_reaches_is_not_told_of_the_call_as_well() -> None:
    assert survey(named={1: 512}).holders([Made(1, 512, HERE, False)]).largest == []


def test_what_the_backward_pass_made_is_no_call_s_when_the_pass_is_over() -> None:
    assert survey().holders([Made(1, 512, HERE, True)]).reached == 0


def test_what_a_library_s_variables_reach_and_what_its_call_made_are_one_row() -> None:
    held = survey(at_work={HERE: {1: 512}}).holders([Made(1, 512, HERE, False), Made(2, 1024, HERE, False)])
    assert held.largest == [Holder("(the call at work)", 1536, 2, HERE)]


def test_only_the_innermost_line_is_in_the_module_at_work() -> None:
    held = survey(lines=[HERE, ELSEWHERE]).holders(
        [Made(1, 512, HERE, False), Made(2, 1024, ELSEWHERE, False)], "encoder"
    )
    assert [each.path for each in held.largest] == ["(the call at work)", "(the call at work, in encoder)"]


def test_an_object_of_the_users_is_told_by_its_attributes() -> None:
    events: list[Event] = []

    class Trainer:
        def __init__(self) -> None:
            self.model = nn.Linear(64, 64).cuda()
            self.history = [torch.ones(1024, device="cuda") for _ in range(8)]

        def run(self) -> None:
            torch.ones(64 << 20, device="cuda")

    with VirtualGPU("40MiB", sink=events.append), pytest.raises(torch.OutOfMemoryError):
        Trainer().run()
    held, share = held_at_failure(events)
    assert {"self.model (Linear)", "self.history (list, 8 items)"} == set(held)
    assert share == 1.0
