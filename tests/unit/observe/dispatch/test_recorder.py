"""The recorder's events: allocations, frees, categories, lines, modules and steps."""

import gc
import inspect
import weakref
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import legroom
from legroom.memory.event_base import Category, Phase
from legroom.memory.events import Alloc, Event, Free, Step, Tag
from legroom.memory.ledger import Ledger
from legroom.observe.dispatch.allocations import HostMemory
from legroom.observe.dispatch.attribution import ModuleStack
from legroom.observe.dispatch.recorder import Recorder, _is_composite
from legroom.observe.holders import autograd_graph


class Recording:
    """A recorder of host memory and its events."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.memory = HostMemory()
        self.recorder = Recorder(self.events.append, [self.memory], host_only=True)

    def categories(self) -> dict[int, Category]:
        """Return the final category of each allocation ID."""
        categories = {alloc.id: alloc.category for alloc in self.allocs()}
        return categories | {event.id: event.category for event in self.events if isinstance(event, Tag)}

    def allocs(self) -> list[Alloc]:
        return [event for event in self.events if isinstance(event, Alloc)]


@pytest.fixture
def recording() -> Iterator[Recording]:
    recording = Recording()
    recording.recorder.attach()
    yield recording
    recording.recorder.detach()


def line_of(function: Callable[..., Any], text: str) -> int:
    """Return the number of the first line of `function` that contains `text`."""
    lines, start = inspect.getsourcelines(function)
    return next(start + offset for offset, line in enumerate(lines) if text in line)


def test_a_storage_is_allocated_once_and_freed_once(recording: Recording) -> None:
    x = torch.ones(1000)
    view = x.view(10, 100)[2:5]
    assert [alloc.bytes for alloc in recording.allocs()] == [4000]
    del x
    assert not any(isinstance(event, Free) for event in recording.events), "a view still references it"
    del view
    assert [event.id for event in recording.events if isinstance(event, Free)] == [recording.allocs()[0].id]
    assert recording.memory.allocated == 0


def test_recording_keeps_nothing_alive(recording: Recording) -> None:
    model = nn.Linear(8, 8)
    x = torch.ones(4, 8)
    y = model(x).relu().sum()
    y.backward()
    references = [weakref.ref(each) for each in (model.weight, model.weight.grad, x, y)]
    del model, x, y
    gc.collect()
    assert [reference() for reference in references] == [None] * 4
    assert recording.memory.allocated == 0


def test_an_empty_tensor_allocates_nothing(recording: Recording) -> None:
    empty = torch.empty(0)
    assert (empty + 1).numel() == 0
    assert recording.allocs() == []


def test_resizing_a_storage_allocates_again(recording: Recording) -> None:
    x = torch.empty(10)
    x.resize_(1000)
    assert [alloc.bytes for alloc in recording.allocs()] == [40, 4000]
    assert recording.memory.allocated == 4000


def train_a_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor
) -> None:
    out = model(x)
    loss = F.cross_entropy(out, y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def test_categories_follow_the_role_of_each_tensor(recording: Recording) -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(TensorDataset(torch.randn(8, 32), torch.randint(0, 10, (8,))), batch_size=8)
    for x, y in loader:
        train_a_step(model, optimizer, x, y)
        alive = {event.id for event in Ledger(recording.events).now().live}
    categories = recording.categories()

    def total(category: Category, ids: set[int] | None = None) -> int:
        return sum(
            alloc.bytes
            for alloc in recording.allocs()
            if categories[alloc.id] is category and (ids is None or alloc.id in ids)
        )

    parameters = sum(p.numel() for p in model.parameters()) * 4
    assert total(Category.PARAMETER) == parameters
    assert total(Category.BUFFER) == 64 * 4 * 2 + 8
    assert total(Category.GRADIENT) == parameters
    assert total(Category.OPTIMIZER_STATE) == parameters * 2 + len(list(model.parameters())) * 4
    # the batch collated by the loader, and the dataset created by the script
    assert total(Category.INPUT, alive) >= 8 * 32 * 4
    assert total(Category.ACTIVATION) > 0


@pytest.mark.skipif(
    not autograd_graph.can_read_saved(),
    reason="requires SavedTensor.data",
)
def test_activations_are_what_autograd_saved(recording: Recording) -> None:
    x = torch.ones(100, requires_grad=True)
    saved = x.exp()  # exp saves its result
    not_saved = saved + 1  # add saves nothing
    not_saved.sum().backward()
    categories = [recording.categories()[alloc.id] for alloc in recording.allocs()[1:3]]
    assert categories == [Category.ACTIVATION, Category.TEMPORARY]


def test_activations_of_a_checkpoint_are_its_inputs(recording: Recording) -> None:
    layer = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 16))
    x = torch.ones(4, 16, requires_grad=True)
    hidden = x * 2
    out = checkpoint(layer, hidden, use_reentrant=False)
    out.sum().backward()
    by_bytes = {(alloc.bytes, alloc.phase): recording.categories()[alloc.id] for alloc in recording.allocs()}
    assert by_bytes[4 * 16 * 4, Phase.FORWARD] is Category.ACTIVATION
    assert (4 * 256 * 4, Phase.BACKWARD) in by_bytes, "recomputed in the backward pass"


def test_a_backward_operation_has_the_line_of_its_forward_operation(recording: Recording) -> None:
    def program() -> None:
        weight = torch.ones(50, 50, requires_grad=True)
        x = torch.ones(20, 50)
        hidden = x @ weight
        activated = hidden.tanh()
        loss = activated.sum()
        loss.backward()

    program()
    backward = [alloc for alloc in recording.allocs() if alloc.phase is Phase.BACKWARD]
    lines = {alloc.op: alloc.frame.line for alloc in backward if alloc.frame}
    assert lines["aten.tanh_backward"] == line_of(program, "hidden.tanh()")
    assert lines["aten.mm"] == line_of(program, "x @ weight")


def test_a_custom_backward_in_python_has_its_own_line(recording: Recording) -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * 2 + 0  # here

    Double.apply(torch.ones(30, requires_grad=True)).sum().backward()
    backward = [
        alloc for alloc in recording.allocs() if alloc.phase is Phase.BACKWARD and alloc.op == "aten.mul"
    ]
    assert backward[0].frame is not None
    assert backward[0].frame.line == line_of(Double.backward, "# here")


def test_forward_and_backward_operations_have_the_module_path(recording: Recording) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x)

    model = Net()
    model(torch.ones(2, 4)).sum().backward()
    products = [
        (alloc.module, alloc.phase) for alloc in recording.allocs() if alloc.op in ("aten.addmm", "aten.mm")
    ]
    assert products == [
        ("body.0", Phase.FORWARD),
        ("body.1", Phase.FORWARD),
        ("body.1", Phase.BACKWARD),
        ("body.1", Phase.BACKWARD),
        ("body.0", Phase.BACKWARD),
    ]


def test_after_a_module_raises_no_module_is_running(recording: Recording) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(RuntimeError):
        model(torch.ones(2, 5))
    torch.ones(3) + 1
    assert recording.allocs()[-1].module == ""


def test_each_optimizer_step_has_its_own_peak(recording: Recording) -> None:
    weight = torch.ones(1000, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for size in (1, 50, 2):
        (weight.sum() * torch.ones(size * 1000).sum()).backward()
        optimizer.step()
    steps = [event for event in recording.events if isinstance(event, Step)]
    assert [step.step for step in steps] == [0, 1, 2]
    assert steps[1].peak_allocated > steps[2].peak_allocated


def test_gradient_accumulation_is_one_step(recording: Recording) -> None:
    weight = torch.ones(10, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for number, (x,) in enumerate(DataLoader(TensorDataset(torch.ones(8, 10)), batch_size=2)):
        (weight * x).sum().backward()
        if number % 2:
            optimizer.step()
    assert [event.step for event in recording.events if isinstance(event, Step)] == [0, 1]


def test_two_optimizers_share_a_step(recording: Recording) -> None:
    first, second = torch.ones(10, requires_grad=True), torch.ones(10, requires_grad=True)
    optimizers = [torch.optim.SGD([first], lr=0.1), torch.optim.SGD([second], lr=0.1)]
    for _ in range(3):
        (first.sum() * second.sum()).backward()
        for optimizer in optimizers:
            optimizer.step()
    assert [event.step for event in recording.events if isinstance(event, Step)] == [0, 1, 2]


def test_without_an_optimizer_the_next_model_call_ends_a_step(recording: Recording) -> None:
    recording.recorder.clock.has_optimizer = lambda: False  # other tests may have left one alive
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    for _ in range(3):
        loss = checkpoint(model, torch.ones(2, 4), use_reentrant=False).sum()
        loss.backward()  # recomputes the model within the step
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= parameter.grad
    assert [event.step for event in recording.events if isinstance(event, Step)] == [0, 1]


def test_backward_passes_are_not_steps_if_an_optimizer_exists(recording: Recording) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
    assert not any(isinstance(event, Step) for event in recording.events)
    optimizer.step()
    assert [event.step for event in recording.events if isinstance(event, Step)] == [0]


def test_batches_are_steps_without_training(recording: Recording) -> None:
    model = nn.Linear(4, 4)
    with torch.no_grad():
        for (x,) in DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2):
            model(x)
    assert [event.step for event in recording.events if isinstance(event, Step)] == [0, 1, 2, 3]


@pytest.mark.parametrize("ahead", [2, 4])
def test_prefetched_batches_are_not_steps(recording: Recording, ahead: int) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = iter(DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=1))
    while fetched := list(islice(batches, ahead)):
        for (x,) in fetched:
            model(x).sum().backward()
        optimizer.step()
    assert [event.step for event in recording.events if isinstance(event, Step)] == list(range(8 // ahead))


def test_fake_tensors_are_recorded_like_real_ones() -> None:
    def program() -> None:
        model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            train_a_step(model, optimizer, torch.randn(8, 32), torch.randint(0, 10, (8,)))

    recorded = []
    for mode in (None, FakeTensorMode()):
        recording = Recording()
        if mode is not None:
            with mode:
                recording.recorder.attach()
                program()
                recording.recorder.detach()
        else:
            recording.recorder.attach()
            program()
            recording.recorder.detach()
        recorded.append(
            [
                (alloc.bytes, alloc.phase, alloc.module, alloc.op)
                for alloc in recording.allocs()
                if alloc.bytes > 8
            ]
        )
        assert {Category.PARAMETER, Category.GRADIENT, Category.ACTIVATION, Category.OPTIMIZER_STATE} <= set(
            recording.categories().values()
        )
    assert recorded[0] == recorded[1]


def test_a_detached_recorder_records_nothing(recording: Recording) -> None:
    recording.recorder.detach()
    count = len(recording.events)
    nn.Linear(3, 3)(torch.ones(2, 3)).sum().backward()
    assert len(recording.events) == count


def test_progress_is_the_fraction_of_the_outputs_that_exist() -> None:
    stack, seen = ModuleStack(), []
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1))
    model[1].register_forward_hook(lambda *_: seen.append(stack.progress))
    stack.attach()
    try:
        model(torch.ones(1))
    finally:
        stack.detach()
    assert seen == [2 / 5]  # two of three outputs; the loss and its gradient count as two more
    assert stack.progress is None


def test_progress_is_unknown_if_modules_are_called_repeatedly() -> None:
    class Unrolled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.Identity()
            self.seen: list[float | None] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(3):
                x = self.cell(x)
                self.seen.append(stack.progress)
            return x

    stack, model = ModuleStack(), Unrolled()
    stack.attach()
    try:
        model(torch.ones(1))
    finally:
        stack.detach()
    assert model.seen[-1] is None


def test_operations_that_are_decomposed_have_a_kernel_for_it() -> None:
    """Without such a kernel, running the operation as a composite crashes the process."""
    composite = []
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads() if hasattr(packet, "overloads") else ():
            func = getattr(packet, overload)
            try:
                has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key(
                    func.name(), "CompositeImplicitAutograd"
                )
            except RuntimeError:  # an operation on numbers, which is never dispatched
                continue
            if _is_composite(func):
                composite.append(name)
                assert has_kernel, func
    assert "conv2d" in composite
    assert "native_batch_norm" not in composite


def test_batch_norm_is_evaluated_in_inference_mode() -> None:
    with legroom.VirtualGPU("1GiB"):
        layer = torch.nn.BatchNorm1d(8).cuda().eval()
        batch = torch.randn(2, 8, device="cuda")
        with torch.no_grad():
            expected = layer(batch)
        with torch.inference_mode():
            assert torch.equal(layer(batch), expected)
