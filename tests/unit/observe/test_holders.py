"""Who holds device memory at one moment: variables, graphs, and calls that are still at work."""

import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from legroom.memory.events import Category, Event, Frame, Holder, Note
from legroom.memory.ledger import Ledger
from legroom.observe.holders import autograd_graph
from legroom.observe.holders.holders import Made, Survey, find_holders
from legroom.observe.virtual.gpu import VirtualGPU
from legroom.units import MiB

ELSEWHERE = Frame("train.py", 3, "main")
HERE = Frame("train.py", 7, "main")
reads_graphs = pytest.mark.skipif(
    not autograd_graph.can_read_saved(), reason="this torch does not tell what graphs save"
)


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


def test_what_is_computed_again_is_held_by_its_graph_or_the_pass_through_it() -> None:
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
    holding = [each for path, each in held.items() if path.startswith(("loss", "(the backward pass at work"))]
    assert sum(each.bytes for each in holding) > 8 * MiB
    assert {each.frame.line for each in holding if each.frame} == {train.__code__.co_firstlineno + 3}
    assert share > 0.98


@reads_graphs
def test_the_inputs_of_a_checkpointed_block_are_held_by_the_graph_behind_it() -> None:
    def measure(tensor: torch.Tensor) -> tuple[int, int]:
        return tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()

    def train(model: nn.Module) -> list[Holder]:
        out = checkpoint(model, torch.ones(8, 4) * 2, use_reentrant=False)
        assert out.shape == (8, 4)
        return find_holders(sys._getframe(), measure, most=100)

    (out,) = [each for each in train(nn.Linear(4, 4)) if each.path == "out (Tensor)"]
    assert out.bytes >= 2 * 8 * 4 * 4


def test_who_watches_holds_nothing() -> None:
    """A script may have its watcher in a variable."""
    events: list[Event] = []

    def forward() -> None:
        kept = torch.ones(MiB, device="cuda")
        torch.ones(64 * MiB, device="cuda") + kept

    with VirtualGPU("40MiB", sink=events.append) as gpu, pytest.raises(torch.OutOfMemoryError):
        watchers = [gpu]
        forward()
    assert len(watchers) == 1
    held, share = held_at_failure(events)
    assert list(held) == ["kept (Tensor)"]
    assert share == 1.0


@reads_graphs
def test_the_output_of_the_step_before_is_a_result() -> None:
    events: list[Event] = []

    def train() -> None:
        model = nn.Sequential(nn.Linear(64, 64), nn.Tanh()).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for rows in (1024, 4096, 65536):
            out = model(torch.ones(rows, 64, device="cuda"))  # saved by its own Tanh
            out.square().mean().backward()
            optimizer.step()

    with VirtualGPU("40MiB", sink=events.append), pytest.raises(torch.OutOfMemoryError):
        train()
    ledger = Ledger(events)
    by_step = {(each.category, each.step) for each in ledger.at_oom().live if each.bytes == 4096 * 64 * 4}
    assert ledger.ooms()[0].step == 2
    assert by_step == {(Category.RESULT, 1)}


def test_a_graph_that_a_list_keeps_is_no_result() -> None:
    events: list[Event] = []

    def train() -> None:
        model = nn.Sequential(nn.Linear(64, 64), nn.Tanh()).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kept = []
        while True:
            out = model(torch.ones(8192, 64, device="cuda"))
            kept.append({"output": out})
            out.mean().backward(retain_graph=True)
            optimizer.step()

    with VirtualGPU("40MiB", sink=events.append), pytest.raises(torch.OutOfMemoryError):
        train()
    ledger = Ledger(events)
    earlier = [each for each in ledger.at_oom().live if 0 < each.step < ledger.ooms()[0].step]
    assert {each.category for each in earlier if each.bytes == 8192 * 64 * 4} == {
        Category.ACTIVATION,
        Category.INPUT,
    }


def test_what_a_graph_keeps_is_held_by_the_backward_pass_that_goes_through_it() -> None:
    held = survey(lines=[HERE], backward_line=HERE).holders([Made(1, 512, ELSEWHERE, False)])
    assert held.largest == [Holder("(the backward pass at work)", 512, 1, HERE)]


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
