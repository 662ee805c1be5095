"""The variables, graphs and running calls that retain device memory at a point in time."""

import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import legroom
from legroom.memory.annotations import HolderCoverage
from legroom.memory.event_base import Category, Frame
from legroom.memory.events import Event, Holder
from legroom.memory.ledger import Ledger
from legroom.observe.holders import autograd_graph
from legroom.observe.holders.holders import HolderSurvey, StepStorage, find_holders, survey_holders
from legroom.observe.virtual.gpu import VirtualGPU
from legroom.units import MiB

ELSEWHERE = Frame("train.py", 3, "main")
HERE = Frame("train.py", 7, "main")
reads_graphs = pytest.mark.skipif(not autograd_graph.can_read_saved(), reason="requires SavedTensor.data")


def held_at_failure(events: list[Event]) -> tuple[dict[str, Holder], float]:
    """Return the holders by path, and the fraction of live memory that they account for."""
    reached = next(event.bytes for event in events if isinstance(event, HolderCoverage))
    alive = sum(each.block_bytes for each in Ledger(events).at_oom().live)
    return {event.path: event for event in events if isinstance(event, Holder)}, reached / alive


def test_intermediate_tensors_are_attributed_to_the_running_call() -> None:
    events: list[Event] = []

    def forward() -> None:
        model = nn.LSTM(32, 256, num_layers=4).cuda()
        model(torch.ones(16, 256, 32, device="cuda"))

    with VirtualGPU("40MiB", sink=events.append), pytest.raises(torch.OutOfMemoryError):
        forward()
    held, share = held_at_failure(events)
    call = held["(intermediate in LSTM)"]
    assert call.bytes > 4 * MiB
    assert call.frame is not None
    assert (call.frame.function, call.frame.line) == ("forward", forward.__code__.co_firstlineno + 2)
    assert share > 0.98


def test_recomputed_tensors_are_attributed_to_the_graph_or_the_backward_pass() -> None:
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
    holding = [
        each for path, each in held.items() if path.startswith(("loss", "(intermediate in the backward pass"))
    ]
    assert sum(each.bytes for each in holding) > 8 * MiB
    assert {each.frame.line for each in holding if each.frame} == {train.__code__.co_firstlineno + 3}
    assert share > 0.98


@reads_graphs
def test_inputs_of_a_checkpointed_block_are_attributed_to_its_output() -> None:
    def measure(tensor: torch.Tensor) -> tuple[int, int]:
        return tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()

    def train(model: nn.Module) -> list[Holder]:
        out = checkpoint(model, torch.ones(8, 4) * 2, use_reentrant=False)
        assert out.shape == (8, 4)
        return find_holders(sys._getframe(), measure, most=100).largest

    (out,) = [each for each in train(nn.Linear(4, 4)) if each.path == "out (Tensor)"]
    assert out.bytes >= 2 * 8 * 4 * 4


def test_views_in_a_container_leave_parts_of_their_storages_unused() -> None:
    events: list[Event] = []

    def train() -> None:
        views = [torch.ones(64, 4096, device="cuda")[0] for _ in range(3)]
        copies = [torch.ones(64, 4096, device="cuda")[0].clone() for _ in range(3)]
        numbers = [torch.ones((), device="cuda") for _ in range(3)]
        halves = list(torch.ones(2, 4096, device="cuda"))
        gpu.fail_allocation(1)
        torch.ones(9, device="cuda")
        assert views, (copies, numbers, halves)

    with VirtualGPU("64MiB", sink=events.append) as gpu, pytest.raises(torch.OutOfMemoryError):
        train()
    held, _ = held_at_failure(events)
    unused = {path.partition(" ")[0]: each.unused_bytes for path, each in held.items()}
    assert unused["views"] == 3 * 63 * 4096 * 4
    assert (unused["copies"], unused["numbers"], unused["halves"]) == (0, 0, 0)


@reads_graphs
def test_memory_that_a_container_shares_with_the_graph_of_the_loss_is_counted() -> None:
    events: list[Event] = []

    def train() -> None:
        layer = nn.Linear(256, 256).cuda()
        x = torch.ones(1024, 256, device="cuda")
        earlier = [torch.ones(1024, 256, device="cuda")]
        hidden = [layer(x).sin() for _ in range(3)]
        loss = sum((each.pow(2).mean() for each in hidden), torch.zeros((), device="cuda"))
        gpu.fail_allocation(2)
        loss.backward()
        assert earlier

    with VirtualGPU("64MiB", sink=events.append) as gpu, pytest.raises(torch.OutOfMemoryError):
        train()
    held, _ = held_at_failure(events)
    assert held["hidden (list, 3 items)"].shared_bytes == held["hidden (list, 3 items)"].bytes > 6 * MiB
    assert held["earlier (list, 1 item)"].shared_bytes == 0


@reads_graphs
def test_activations_of_an_unfinished_list_are_recognized() -> None:
    events: list[Event] = []

    def forward(layers: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([layer(x).sin().exp() for layer in layers])

    with VirtualGPU("40MiB", sink=events.append), pytest.raises(torch.OutOfMemoryError):
        layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(20)).cuda()
        forward(layers, torch.ones(2048, 256, device="cuda"))
    by_category = Ledger(events).at_oom().by_category()
    assert by_category[Category.ACTIVATION] == 16 * MiB
    assert by_category[Category.TEMPORARY] == 2 * MiB


def test_a_guard_is_a_holder_only_if_no_other_variable_retains_the_model() -> None:
    def measure(tensor: torch.Tensor) -> tuple[int, int]:
        return tensor.data_ptr(), tensor.nbytes

    def survey(keep: bool) -> list[str]:
        model = nn.Linear(4, 4)
        guard = legroom.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1))
        assert guard is not None
        if not keep:
            del model
        found = survey_holders(sys._getframe(), measure).holders(most=100).largest
        return [each.path for each in found if each.path.startswith(("model ", "guard "))]

    assert survey(keep=True) == ["model (Linear)"]
    assert survey(keep=False) == ["guard (Guard)"]


def test_legroom_objects_that_only_observe_are_never_holders() -> None:
    """The virtual GPU is such an object. A script may store it in a variable."""
    events: list[Event] = []

    def forward() -> None:
        held = torch.ones(MiB, device="cuda")
        torch.ones(64 * MiB, device="cuda") + held

    with VirtualGPU("40MiB", sink=events.append) as gpu, pytest.raises(torch.OutOfMemoryError):
        variable = [gpu]
        forward()
    assert len(variable) == 1
    held, share = held_at_failure(events)
    assert list(held) == ["held (Tensor)"]
    assert share == 1.0


@reads_graphs
def test_the_output_of_the_previous_step_is_a_result() -> None:
    events: list[Event] = []

    def train() -> None:
        model = nn.Sequential(nn.Linear(64, 64), nn.Tanh()).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for samples in (1024, 4096, 65536):
            out = model(torch.ones(samples, 64, device="cuda"))  # saved by its own Tanh
            out.square().mean().backward()
            optimizer.step()

    with VirtualGPU("40MiB", sink=events.append), pytest.raises(torch.OutOfMemoryError):
        train()
    ledger = Ledger(events)
    by_step = {(each.category, each.step) for each in ledger.at_oom().live if each.bytes == 4096 * 64 * 4}
    assert ledger.ooms()[0].step == 2
    assert by_step == {(Category.RESULT, 1)}


def test_a_variable_outside_the_model_retains_a_result() -> None:
    events: list[Event] = []

    def measure() -> None:
        points = torch.ones(1024, 8, device="cuda")
        distances = torch.cdist(points, points)
        torch.cat([distances] * 6)

    with VirtualGPU("24MiB", sink=events.append), pytest.raises(torch.OutOfMemoryError):
        measure()
    live = {each.bytes: each.category for each in Ledger(events).at_oom().live}
    assert live[1024 * 1024 * 4] is Category.RESULT


def test_a_graph_retained_by_a_list_is_not_a_result() -> None:
    events: list[Event] = []

    def train() -> None:
        model = nn.Sequential(nn.Linear(64, 64), nn.Tanh()).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        outputs = []
        while True:
            out = model(torch.ones(8192, 64, device="cuda"))
            outputs.append({"output": out})
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


def test_saved_tensors_are_attributed_to_the_running_backward_pass() -> None:
    held = survey(lines=[HERE], backward_line=HERE).holders([StepStorage(1, 512, ELSEWHERE, False)])
    assert held.largest == [Holder("(intermediate in the backward pass)", 512, 1, HERE)]


def survey(**changes: Any) -> HolderSurvey:
    return HolderSurvey([], {}, {}, [HERE], None)._replace(**changes)


def test_a_finished_call_retains_nothing() -> None:
    assert survey().holders([StepStorage(1, 512, ELSEWHERE, False)]).total_bytes == 0


def test_a_storage_of_a_variable_is_not_counted_for_the_call() -> None:
    assert survey(by_variables={1: 512}).holders([StepStorage(1, 512, HERE, False)]).largest == []


def test_storages_of_a_finished_backward_pass_have_no_holder() -> None:
    assert survey().holders([StepStorage(1, 512, HERE, True)]).total_bytes == 0


def test_local_variables_of_a_library_and_intermediates_of_its_call_are_one_holder() -> None:
    held = survey(by_calls={HERE: {1: 512}}).holders(
        [StepStorage(1, 512, HERE, False), StepStorage(2, 1024, HERE, False)]
    )
    assert held.largest == [Holder("(intermediate in a running call)", 1536, 2, HERE)]


def test_only_the_innermost_line_names_the_module() -> None:
    held = survey(lines=[HERE, ELSEWHERE]).holders(
        [StepStorage(1, 512, HERE, False), StepStorage(2, 1024, ELSEWHERE, False)], "encoder"
    )
    assert [each.path for each in held.largest] == [
        "(intermediate in a running call)",
        "(intermediate in encoder)",
    ]


def test_an_instance_of_a_user_class_is_listed_by_attribute() -> None:
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
