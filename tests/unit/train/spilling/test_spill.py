"""Saved activations in host memory: the same gradients, less device memory, nothing left behind."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from legroom.errors import UsageError
from legroom.observe.virtual.gpu import VirtualGPU
from legroom.train.spilling import spill as spill_module
from legroom.train.spilling.spill import Spill
from legroom.train.spilling.transfers import lane_to
from legroom.units import MiB

ROWS, WIDTH = 1024, 256
ACTIVATION = ROWS * WIDTH * 4  # 1 MiB


@pytest.fixture
def gpu() -> Iterator[VirtualGPU]:
    with VirtualGPU("256MiB") as active:
        yield active


def block() -> nn.Module:
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.LayerNorm(WIDTH), nn.Dropout(0.1), nn.Linear(WIDTH, WIDTH)
    )


def gradients(
    inside: AbstractContextManager[object],
    loss_of: Callable[[nn.Module, torch.Tensor], torch.Tensor] | None = None,
) -> tuple[list[torch.Tensor], int]:
    """Of a small network, and the device bytes that were held between the passes."""
    torch.manual_seed(0)
    model = nn.Sequential(*(block() for _ in range(4))).cuda()
    batch = torch.randn(ROWS, WIDTH, device="cuda")
    torch.manual_seed(1)
    with inside:
        loss = model(batch).square().mean() if loss_of is None else loss_of(model, batch)
    held = torch.cuda.memory_allocated()
    loss.backward()
    return [parameter.grad.cpu() for parameter in model.parameters()], held


def assert_same(left: list[torch.Tensor], right: list[torch.Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_gradients_are_the_same_bit_for_bit_and_the_device_is_emptier(gpu):
    plain, held_plain = gradients(nullcontext())
    spilled, held = gradients(Spill())
    assert_same(plain, spilled)
    assert held_plain > 17 * ACTIVATION
    assert held < held_plain - 11 * ACTIVATION


def test_a_step_that_does_not_fit_fits_with_it():
    with VirtualGPU("20MiB"), pytest.raises(torch.OutOfMemoryError):
        gradients(nullcontext())
    with VirtualGPU("20MiB"):
        gradients(Spill())


def test_nothing_is_left_on_either_side_after_the_backward_pass(gpu):
    spill = Spill()
    before = torch.cuda.memory_allocated()
    gradients(spill)
    assert spill.moved_bytes >= 16 * ACTIVATION
    assert spill.peak_host_bytes >= 16 * ACTIVATION
    assert spill.host_bytes == 0
    gc.collect()
    assert torch.cuda.memory_allocated() == before


def test_what_several_operations_save_is_copied_once(gpu):
    def loss_of(leaf: torch.Tensor) -> torch.Tensor:
        query, key, value = (leaf * 2).chunk(3, dim=-1)
        return (query * key).sum() + (key * value).sum()

    spill = Spill()
    leaf = torch.randn(ROWS, 3 * WIDTH, device="cuda", requires_grad=True)
    with spill:
        loss = loss_of(leaf)
    assert (spill.moved_tensors, spill.moved_bytes) == (1, 3 * ACTIVATION)
    (spilled,) = torch.autograd.grad(loss, leaf)
    assert torch.equal(spilled, torch.autograd.grad(loss_of(leaf), leaf)[0])


def test_parameters_stay_on_the_device(gpu):
    spill = Spill()
    weight = nn.Parameter(torch.randn(WIDTH, 4 * ROWS, device="cuda"))
    with spill:
        (torch.randn(4, WIDTH, device="cuda") @ weight).sum()
        (torch.randn(4, 4 * ROWS, device="cuda") @ weight.t()).sum()
    assert spill.moved_tensors == 0


def test_small_tensors_stay_on_the_device(gpu):
    kept, moved = Spill(), Spill(smallest=1024)
    for spill in (kept, moved):
        leaf = torch.randn(ROWS, device="cuda", requires_grad=True)
        with spill:
            (leaf * 2).exp().sum().backward()
    assert kept.moved_tensors == 0
    assert moved.moved_tensors > 0


def test_tensors_of_the_host_are_left_alone():
    spill = Spill()
    leaf = torch.randn(ROWS, WIDTH, requires_grad=True)
    with spill:
        (leaf * 2).exp().sum().backward()
    assert spill.moved_tensors == 0


def test_a_batch_cut_out_of_a_data_set_on_the_device_stays(gpu):
    spill = Spill()
    data = torch.randn(16 * ROWS, WIDTH, device="cuda")
    factor = torch.randn(ROWS, WIDTH, device="cuda", requires_grad=True)
    with spill:
        (factor * data[:ROWS]).sum().backward()
    assert spill.moved_tensors == 0


def test_a_budget_is_kept_and_the_gradients_with_it(gpu):
    plain, _ = gradients(nullcontext())
    spill = Spill("5MiB")
    spilled, _ = gradients(spill)
    assert_same(plain, spilled)
    assert spill.peak_host_bytes == 5 * MiB
    assert spill.left_bytes > 5 * ACTIVATION


def test_a_host_without_memory_leaves_the_rest_on_the_device(gpu, monkeypatch):
    plain, _ = gradients(nullcontext())
    spill, made = Spill(), []

    def lane_that_fails(device: torch.device):
        lane = lane_to(device)
        original = lane.to_host

        def to_host(source):
            if len(made) == 3:
                raise RuntimeError("cudaHostAlloc failed: out of memory")
            made.append(source.numel())
            return original(source)

        lane.to_host = to_host
        return lane

    monkeypatch.setattr(spill_module, "lane_to", lane_that_fails)
    spilled, _ = gradients(spill)
    assert_same(plain, spilled)
    assert spill.moved_tensors == 3


def test_an_error_of_the_copy_that_is_not_about_memory_is_shown(gpu, monkeypatch):
    class Broken:
        waited = 0.0

        def host_bytes(self, size):
            return size

        def to_host(self, source):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(spill_module, "lane_to", lambda device: Broken())
    with pytest.raises(RuntimeError, match="illegal memory access"):
        gradients(Spill())


# --- order


def test_the_next_ones_are_fetched_before_they_are_asked_for(gpu, monkeypatch):
    fetched: list[int] = []

    def recorded(device: torch.device):
        lane = lane_to(device)
        original = lane.to_device

        def to_device(source, after):
            fetched.append(source.numel() // ACTIVATION)
            return original(source, after)

        lane.to_device = to_device
        return lane

    monkeypatch.setattr(spill_module, "lane_to", recorded)
    monkeypatch.setattr(spill_module, "UNDER_WAY", 0)  # all of them go

    class Asks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, kept):
            ctx.save_for_backward(kept)
            return kept[:1].clone()

        @staticmethod
        def backward(ctx, gradient):
            (kept,) = ctx.saved_tensors
            asked.append(kept.numel() * 4 // ACTIVATION)
            counts.append(len(fetched))
            return torch.zeros_like(kept)

    asked: list[int] = []
    counts: list[int] = []
    leaf = torch.zeros(1, device="cuda", requires_grad=True)
    with Spill():
        total = leaf.sum()
        for number in range(1, 5):  # sizes tell them apart
            total = total + Asks.apply(torch.zeros(number * ROWS, WIDTH, device="cuda") + leaf).sum()
    total.backward()
    assert sorted(asked) == [1, 2, 3, 4]
    assert counts[0] == 3  # itself, and the two before it
    assert sorted(fetched) == [1, 2, 3, 4]


def test_of_large_tensors_fewer_are_on_the_way_at_a_time(gpu, monkeypatch):
    monkeypatch.setattr(spill_module, "BYTES_ON_THE_WAY", ACTIVATION)
    leaf = torch.randn(ROWS, WIDTH, device="cuda", requires_grad=True)
    with Spill():
        value = leaf
        for _ in range(8):
            value = value.exp()
        total = value.sum()
        del value
        assert torch.cuda.memory_allocated() < 4 * ACTIVATION  # the leaf and two results
    total.backward()


def test_a_device_too_full_to_fetch_ahead_does_without(gpu):
    plain, _ = gradients(nullcontext())
    failed = []

    class Tight(Spill):
        def _fetch_ahead(self, copy):
            lane = copy.lane
            original = lane.to_device

            def to_device(source, after):
                failed.append(source.numel())
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 MiB.")

            lane.to_device = to_device
            super()._fetch_ahead(copy)
            lane.to_device = original

    spilled, _ = gradients(Tight())
    assert_same(plain, spilled)
    assert failed


# --- tensors changed in place


def test_a_kept_tensor_changed_in_place_is_refused(gpu):
    leaf = torch.randn(8, device="cuda", requires_grad=True)
    with Spill():
        result = leaf.exp()
    result.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_a_tensor_changed_while_its_copy_is_under_way_is_refused(gpu):
    leaf = torch.randn(ROWS, WIDTH, device="cuda", requires_grad=True)
    with Spill():
        result = leaf.exp()
        result.mul_(2)
    with pytest.raises(RuntimeError, match=r"shape \[1024, 256\] is at version 1; expected version 0"):
        result.sum().backward()


def test_a_tensor_changed_after_its_copy_gives_the_gradient_of_what_was_saved(gpu):
    leaf = torch.randn(ROWS, WIDTH, device="cuda", requires_grad=True)
    with Spill():
        result = leaf.exp()
        total = result.sum()
        others = [leaf.exp() for _ in range(5)]  # whose copies push its own out
    expected = result.detach().clone()
    result.detach().zero_()
    assert torch.equal(torch.autograd.grad(total, leaf)[0], expected)
    del others


# --- other ways through autograd


def test_gradients_of_gradients_are_the_same(gpu):
    def second(inside: AbstractContextManager[object]) -> torch.Tensor:
        torch.manual_seed(0)
        leaf = torch.randn(ROWS, WIDTH, device="cuda", requires_grad=True)
        with inside:
            loss = (leaf.sin() * leaf.exp()).sum()
            (first,) = torch.autograd.grad(loss, leaf, create_graph=True)
            penalty = first.square().sum()
        penalty.backward()
        return leaf.grad

    spill = Spill()
    assert torch.equal(second(nullcontext()), second(spill))
    assert spill.moved_tensors > 0


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_parts_are_the_same(gpu, reentrant):
    def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        batch.requires_grad_()
        for part in model:
            batch = checkpoint(part, batch, use_reentrant=reentrant)
        return batch.square().mean()

    plain, _ = gradients(nullcontext(), loss_of)
    spill = Spill()
    spilled, _ = gradients(spill, loss_of)
    assert_same(plain, spilled)
    assert spill.moved_tensors > 0
    assert spill.host_bytes == 0


def test_a_graph_that_is_kept_can_be_walked_again(gpu):
    leaf = torch.randn(ROWS, WIDTH, device="cuda", requires_grad=True)
    with Spill() as spill:
        loss = leaf.sin().exp().sum()
    first = torch.autograd.grad(loss, leaf, retain_graph=True)[0]
    assert spill.host_bytes > 0
    assert torch.equal(first, torch.autograd.grad(loss, leaf)[0])


def test_half_precision_under_autocast_is_the_same(gpu):
    def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return model(batch).square().mean()

    plain, _ = gradients(nullcontext(), loss_of)
    spilled, _ = gradients(Spill(smallest="64KiB"), loss_of)
    assert_same(plain, spilled)


# --- nothing left behind


def test_a_graph_that_is_never_walked_leaves_nothing(gpu):
    spill = Spill()
    leaf = torch.randn(ROWS, WIDTH, device="cuda", requires_grad=True)
    before = torch.cuda.memory_allocated()
    with spill:
        loss = leaf.sin().exp().sum()
        assert spill.host_bytes > 0
        del loss
    gc.collect()
    assert spill.host_bytes == 0
    assert torch.cuda.memory_allocated() == before


def test_a_backward_pass_that_fails_leaves_nothing(gpu):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise ValueError("in the middle")

    spill = Spill()
    leaf = torch.randn(ROWS, WIDTH, device="cuda", requires_grad=True)
    before = torch.cuda.memory_allocated()
    with spill:
        loss = Fails.apply(leaf.sin().exp()).cos().exp().sum()
    with pytest.raises(ValueError, match="in the middle"):
        loss.backward()
    del loss
    gc.collect()
    assert spill.host_bytes == 0
    assert torch.cuda.memory_allocated() == before


def test_a_forward_pass_that_fails_leaves_neither_hooks_nor_tensors(gpu):
    spill = Spill()
    references: list[weakref.ref[torch.Tensor]] = []

    def forward() -> None:
        leaf = torch.randn(ROWS, WIDTH, device="cuda", requires_grad=True)
        with spill:
            activation = leaf.sin().exp()
            references.append(weakref.ref(activation))
            raise KeyError("label")

    with pytest.raises(KeyError):
        forward()
    gc.collect()
    assert references[0]() is None
    assert spill.host_bytes == 0
    moved = spill.moved_tensors
    torch.randn(ROWS, WIDTH, device="cuda", requires_grad=True).exp()
    assert spill.moved_tensors == moved


def test_between_steps_no_tensor_stays_for_a_copy_that_nobody_wants(gpu):
    spill = Spill()
    leaf = torch.randn(ROWS, WIDTH, device="cuda", requires_grad=True)
    with spill:
        leaf.sin().exp().sum().backward()
        leaf.grad = None
        assert torch.cuda.memory_allocated() == ACTIVATION


# --- threads


def test_only_the_thread_that_entered_it_spills(gpu):
    assert moved_by_a_thread(Spill()) == 0


def test_everywhere_means_threads_too(gpu):
    spill = Spill()
    assert moved_by_a_thread(spill, spill.everywhere()) > 0
    thread_run = threading.Thread.run
    with spill.everywhere():
        assert threading.Thread.run is not thread_run
    assert threading.Thread.run is thread_run


def moved_by_a_thread(spill: Spill, inside: AbstractContextManager[object] | None = None) -> int:
    def work() -> None:
        torch.randn(ROWS, WIDTH, device="cuda", requires_grad=True).exp().sum().backward()

    with inside or spill:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    return spill.moved_tensors


# --- the rest


def test_a_plain_lane_takes_bytes_there_and_back():
    lane = lane_to(torch.device("cpu"))
    source = torch.arange(64, dtype=torch.uint8)
    there, after = lane.to_host(source)
    back, after = lane.to_device(there, after)
    lane.wait(after)
    assert torch.equal(back, source)
    assert back.data_ptr() != source.data_ptr()


def test_memory_about_to_be_overwritten_is_not_filled_in_deterministic_mode(gpu, monkeypatch):
    lane = lane_to(torch.device("cuda", 0))
    source = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
    empty, fills = torch.empty, []

    def spy(*args, **kwargs):
        fills.append(torch.utils.deterministic.fill_uninitialized_memory)
        return empty(*args, **kwargs)

    monkeypatch.setattr(torch, "empty", spy)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    lane.to_device(*lane.to_host(source))
    assert fills == [False, False]
    assert torch.utils.deterministic.fill_uninitialized_memory


def test_a_budget_that_is_no_size_is_refused():
    with pytest.raises(UsageError, match="is not a valid size"):
        Spill("plenty")


def test_it_says_what_it_did(gpu):
    spill = Spill("64MiB")
    gradients(spill)
    assert repr(spill).startswith("<Spill 64.0 MiB, ")
    assert spill.seconds > 0


def test_when_the_budget_is_used_up_the_last_copies_free_their_memory_too(gpu):
    leaf = torch.randn(ROWS, WIDTH, device="cuda", requires_grad=True)
    with Spill("4MiB"):
        value = leaf.sin()
        for _ in range(12):
            value = value.sin()
        total = value.sum()
        del value
        assert torch.cuda.memory_allocated() < 11 * ACTIVATION  # the leaf and nine results: four are away
    total.backward()


def test_transforms_that_allow_no_hooks_run_and_spilling_goes_on_after_them(gpu):
    def loss_of(value: torch.Tensor) -> torch.Tensor:
        return value.sin().exp().sum()

    leaf = torch.randn(ROWS, WIDTH, device="cuda", requires_grad=True)
    expected = torch.func.grad(loss_of)(leaf.detach())
    spill = Spill()
    with spill.everywhere():
        assert torch.equal(torch.func.grad(loss_of)(leaf.detach()), expected)
        assert torch.func.hessian(lambda value: value.square().sum())(torch.ones(2)).shape == (2, 2)
        assert spill.moved_tensors == 0
        loss_of(leaf).backward()
        assert spill.moved_tensors > 0
    assert torch.equal(leaf.grad, expected)
