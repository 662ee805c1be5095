"""Saved activations in host memory: same gradients, less device memory, no leaks."""

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
from legroom.train.spilling.transfers import host_link
from legroom.units import MiB

SAMPLES, WIDTH = 1024, 256
ACTIVATION = SAMPLES * WIDTH * 4  # 1 MiB


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
    samples: int = SAMPLES,
) -> tuple[list[torch.Tensor], int]:
    """Return the gradients of a small model, and the allocated bytes between the forward and the backward pass."""
    torch.manual_seed(0)
    model = nn.Sequential(*(block() for _ in range(4))).cuda()
    batch = torch.randn(samples, WIDTH, device="cuda")
    torch.manual_seed(1)
    with inside:
        loss = model(batch).square().mean() if loss_of is None else loss_of(model, batch)
    allocated = torch.cuda.memory_allocated()
    loss.backward()
    return [parameter.grad.cpu() for parameter in model.parameters()], allocated


def assert_same(left: list[torch.Tensor], right: list[torch.Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.slow
def test_gradients_are_bit_for_bit_equal_with_less_device_memory(gpu):
    plain, allocated_plain = gradients(nullcontext())
    spilled, allocated = gradients(Spill())
    assert_same(plain, spilled)
    assert allocated_plain > 17 * ACTIVATION
    assert allocated < allocated_plain - 11 * ACTIVATION


@pytest.mark.slow
def test_a_step_that_does_not_fit_fits_with_spill():
    with VirtualGPU("20MiB"), pytest.raises(torch.OutOfMemoryError):
        gradients(nullcontext())
    with VirtualGPU("20MiB"):
        gradients(Spill())


def test_all_memory_is_freed_after_the_backward_pass(gpu):
    spill = Spill()
    before = torch.cuda.memory_allocated()
    gradients(spill)
    assert spill.moved_bytes >= 16 * ACTIVATION
    assert spill.peak_host_bytes >= 16 * ACTIVATION
    assert spill.host_bytes == 0
    gc.collect()
    assert torch.cuda.memory_allocated() == before


def test_a_storage_saved_by_several_operations_is_copied_once(gpu):
    def loss_of(leaf: torch.Tensor) -> torch.Tensor:
        query, key, value = (leaf * 2).chunk(3, dim=-1)
        return (query * key).sum() + (key * value).sum()

    spill = Spill()
    leaf = torch.randn(SAMPLES, 3 * WIDTH, device="cuda", requires_grad=True)
    with spill:
        loss = loss_of(leaf)
    assert (spill.moved_tensors, spill.moved_bytes) == (1, 3 * ACTIVATION)
    (spilled,) = torch.autograd.grad(loss, leaf)
    assert torch.equal(spilled, torch.autograd.grad(loss_of(leaf), leaf)[0])


def test_parameters_stay_on_the_device(gpu):
    spill = Spill()
    weight = nn.Parameter(torch.randn(WIDTH, 4 * SAMPLES, device="cuda"))
    with spill:
        (torch.randn(4, WIDTH, device="cuda") @ weight).sum()
        (torch.randn(4, 4 * SAMPLES, device="cuda") @ weight.t()).sum()
    assert spill.moved_tensors == 0


def test_small_tensors_stay_on_the_device(gpu):
    default, small = Spill(), Spill(min_size=1024)
    for spill in (default, small):
        leaf = torch.randn(SAMPLES, device="cuda", requires_grad=True)
        with spill:
            (leaf * 2).exp().sum().backward()
    assert default.moved_tensors == 0
    assert small.moved_tensors > 0


def test_cpu_tensors_are_not_moved():
    spill = Spill()
    leaf = torch.randn(SAMPLES, WIDTH, requires_grad=True)
    with spill:
        (leaf * 2).exp().sum().backward()
    assert spill.moved_tensors == 0


def test_a_slice_of_a_data_set_on_the_device_is_not_moved(gpu):
    spill = Spill()
    data = torch.randn(16 * SAMPLES, WIDTH, device="cuda")
    factor = torch.randn(SAMPLES, WIDTH, device="cuda", requires_grad=True)
    with spill:
        (factor * data[:SAMPLES]).sum().backward()
    assert spill.moved_tensors == 0


@pytest.mark.slow
def test_the_budget_is_respected_with_the_same_gradients(gpu):
    plain, _ = gradients(nullcontext())
    spill = Spill("5MiB")
    spilled, _ = gradients(spill)
    assert_same(plain, spilled)
    assert spill.peak_host_bytes == 5 * MiB
    assert spill.skipped_bytes > 5 * ACTIVATION


@pytest.mark.slow
def test_if_host_memory_runs_out_the_rest_stays_on_the_device(gpu, monkeypatch):
    plain, _ = gradients(nullcontext())
    spill, copied = Spill(), []

    def failing_link(device: torch.device):
        link = host_link(device)
        original = link.to_host

        def to_host(source):
            if len(copied) == 3:
                raise RuntimeError("cudaHostAlloc failed: out of memory")
            copied.append(source.numel())
            return original(source)

        link.to_host = to_host
        return link

    monkeypatch.setattr(spill_module, "host_link", failing_link)
    spilled, _ = gradients(spill)
    assert_same(plain, spilled)
    assert spill.moved_tensors == 3


def test_other_errors_of_a_copy_are_raised(gpu, monkeypatch):
    class Broken:
        waited = 0.0

        def host_bytes(self, size):
            return size

        def to_host(self, source):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(spill_module, "host_link", lambda device: Broken())
    with pytest.raises(RuntimeError, match="illegal memory access"):
        gradients(Spill())


# --- order


def test_the_next_tensors_are_prefetched(gpu, monkeypatch):
    fetched: list[int] = []

    def recording_link(device: torch.device):
        link = host_link(device)
        original = link.to_device

        def to_device(source, after):
            fetched.append(source.numel() // ACTIVATION)
            return original(source, after)

        link.to_device = to_device
        return link

    monkeypatch.setattr(spill_module, "host_link", recording_link)
    monkeypatch.setattr(spill_module, "MAX_PENDING_COPIES", 0)  # all tensors leave the device

    class Saves(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            ctx.save_for_backward(value)
            return value[:1].clone()

        @staticmethod
        def backward(ctx, gradient):
            (value,) = ctx.saved_tensors
            requested.append(value.numel() * 4 // ACTIVATION)
            counts.append(len(fetched))
            return torch.zeros_like(value)

    requested: list[int] = []
    counts: list[int] = []
    leaf = torch.zeros(1, device="cuda", requires_grad=True)
    with Spill():
        total = leaf.sum()
        for number in range(1, 5):  # identified by their sizes
            total = total + Saves.apply(torch.zeros(number * SAMPLES, WIDTH, device="cuda") + leaf).sum()
    total.backward()
    assert sorted(requested) == [1, 2, 3, 4]
    assert counts[0] == 3  # the tensor itself and the two saved before it
    assert sorted(fetched) == [1, 2, 3, 4]


def test_fewer_large_tensors_are_pending_at_once(gpu, monkeypatch):
    monkeypatch.setattr(spill_module, "MAX_PENDING_BYTES", ACTIVATION)
    leaf = torch.randn(SAMPLES, WIDTH, device="cuda", requires_grad=True)
    with Spill():
        value = leaf
        for _ in range(8):
            value = value.exp()
        total = value.sum()
        del value
        assert torch.cuda.memory_allocated() < 4 * ACTIVATION  # the leaf and two results
    total.backward()


@pytest.mark.slow
def test_prefetching_is_skipped_if_the_device_is_full(gpu):
    plain, _ = gradients(nullcontext())
    failed = []

    class FullDevice(Spill):
        def _prefetch(self, copy):
            link = copy.link
            original = link.to_device

            def to_device(source, after):
                failed.append(source.numel())
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 MiB.")

            link.to_device = to_device
            super()._prefetch(copy)
            link.to_device = original

    spilled, _ = gradients(FullDevice())
    assert_same(plain, spilled)
    assert failed


# --- tensors modified in place


def test_an_unmoved_tensor_modified_in_place_raises(gpu):
    leaf = torch.randn(8, device="cuda", requires_grad=True)
    with Spill():
        result = leaf.exp()
    result.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_a_tensor_modified_during_its_copy_raises(gpu):
    leaf = torch.randn(SAMPLES, WIDTH, device="cuda", requires_grad=True)
    with Spill():
        result = leaf.exp()
        result.mul_(2)
    with pytest.raises(RuntimeError, match=r"shape \[1024, 256\] is at version 1; expected version 0"):
        result.sum().backward()


def test_a_tensor_modified_after_its_copy_has_the_gradient_of_the_saved_value(gpu):
    leaf = torch.randn(SAMPLES, WIDTH, device="cuda", requires_grad=True)
    with Spill():
        result = leaf.exp()
        total = result.sum()
        others = [leaf.exp() for _ in range(5)]  # after their copies, the first copy is complete
    expected = result.detach().clone()
    result.detach().zero_()
    assert torch.equal(torch.autograd.grad(total, leaf)[0], expected)
    del others


# --- other uses of autograd


def test_second_order_gradients_are_equal(gpu):
    def second(inside: AbstractContextManager[object]) -> torch.Tensor:
        torch.manual_seed(0)
        leaf = torch.randn(SAMPLES, WIDTH, device="cuda", requires_grad=True)
        with inside:
            loss = (leaf.sin() * leaf.exp()).sum()
            (first,) = torch.autograd.grad(loss, leaf, create_graph=True)
            penalty = first.square().sum()
        penalty.backward()
        return leaf.grad

    spill = Spill()
    assert torch.equal(second(nullcontext()), second(spill))
    assert spill.moved_tensors > 0


@pytest.mark.slow
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradients_with_activation_checkpointing_are_equal(gpu, reentrant):
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


def test_a_retained_graph_can_be_used_again(gpu):
    leaf = torch.randn(SAMPLES, WIDTH, device="cuda", requires_grad=True)
    with Spill() as spill:
        loss = leaf.sin().exp().sum()
    first = torch.autograd.grad(loss, leaf, retain_graph=True)[0]
    assert spill.host_bytes > 0
    assert torch.equal(first, torch.autograd.grad(loss, leaf)[0])


@pytest.mark.slow
def test_gradients_under_autocast_are_equal(gpu):
    def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return model(batch).square().mean()

    # Few samples: bfloat16 is slow on some processors.
    plain, _ = gradients(nullcontext(), loss_of, samples=32)
    spill = Spill(min_size="8KiB")
    spilled, _ = gradients(spill, loss_of, samples=32)
    assert spill.moved_bytes > 0
    assert_same(plain, spilled)


# --- memory is freed


def test_a_graph_without_backward_is_freed(gpu):
    spill = Spill()
    leaf = torch.randn(SAMPLES, WIDTH, device="cuda", requires_grad=True)
    before = torch.cuda.memory_allocated()
    with spill:
        loss = leaf.sin().exp().sum()
        assert spill.host_bytes > 0
        del loss
    gc.collect()
    assert spill.host_bytes == 0
    assert torch.cuda.memory_allocated() == before


def test_memory_is_freed_after_an_error_in_the_backward_pass(gpu):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise ValueError("in the middle")

    spill = Spill()
    leaf = torch.randn(SAMPLES, WIDTH, device="cuda", requires_grad=True)
    before = torch.cuda.memory_allocated()
    with spill:
        loss = Fails.apply(leaf.sin().exp()).cos().exp().sum()
    with pytest.raises(ValueError, match="in the middle"):
        loss.backward()
    del loss
    gc.collect()
    assert spill.host_bytes == 0
    assert torch.cuda.memory_allocated() == before


def test_hooks_and_tensors_are_freed_after_an_error_in_the_forward_pass(gpu):
    spill = Spill()
    references: list[weakref.ref[torch.Tensor]] = []

    def forward() -> None:
        leaf = torch.randn(SAMPLES, WIDTH, device="cuda", requires_grad=True)
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
    torch.randn(SAMPLES, WIDTH, device="cuda", requires_grad=True).exp()
    assert spill.moved_tensors == moved


def test_pending_copies_are_freed_between_steps(gpu):
    spill = Spill()
    leaf = torch.randn(SAMPLES, WIDTH, device="cuda", requires_grad=True)
    with spill:
        leaf.sin().exp().sum().backward()
        leaf.grad = None
        assert torch.cuda.memory_allocated() == ACTIVATION


# --- threads


def test_only_the_thread_that_enters_it_spills(gpu):
    assert moved_by_a_thread(Spill()) == 0


def test_all_threads_includes_new_threads(gpu):
    spill = Spill()
    assert moved_by_a_thread(spill, spill.all_threads()) > 0
    thread_run = threading.Thread.run
    with spill.all_threads():
        assert threading.Thread.run is not thread_run
    assert threading.Thread.run is thread_run


def moved_by_a_thread(spill: Spill, inside: AbstractContextManager[object] | None = None) -> int:
    def work() -> None:
        torch.randn(SAMPLES, WIDTH, device="cuda", requires_grad=True).exp().sum().backward()

    with inside or spill:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    return spill.moved_tensors


# --- other behavior


def test_a_synchronous_link_copies_in_both_directions():
    link = host_link(torch.device("cpu"))
    source = torch.arange(64, dtype=torch.uint8)
    host, after = link.to_host(source)
    back, after = link.to_device(host, after)
    link.wait(after)
    assert torch.equal(back, source)
    assert back.data_ptr() != source.data_ptr()


def test_copy_buffers_are_not_filled_in_deterministic_mode(gpu, monkeypatch):
    link = host_link(torch.device("cuda", 0))
    source = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
    empty, fills = torch.empty, []

    def spy(*args, **kwargs):
        fills.append(torch.utils.deterministic.fill_uninitialized_memory)
        return empty(*args, **kwargs)

    monkeypatch.setattr(torch, "empty", spy)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    link.to_device(*link.to_host(source))
    assert fills == [False, False]
    assert torch.utils.deterministic.fill_uninitialized_memory


def test_an_invalid_budget_is_rejected():
    with pytest.raises(UsageError, match="is not a valid size"):
        Spill("plenty")


def test_repr_shows_the_statistics(gpu):
    spill = Spill("64MiB")
    gradients(spill)
    assert repr(spill).startswith("<Spill 64.0 MiB, ")
    assert spill.seconds > 0


def test_if_the_budget_is_used_up_the_last_copies_free_their_memory(gpu):
    leaf = torch.randn(SAMPLES, WIDTH, device="cuda", requires_grad=True)
    with Spill("4MiB"):
        value = leaf.sin()
        for _ in range(12):
            value = value.sin()
        total = value.sum()
        del value
        assert (
            torch.cuda.memory_allocated() < 11 * ACTIVATION
        )  # the leaf and nine results; four are on the host
    total.backward()


def test_torch_func_transforms_run_and_spilling_continues_afterwards(gpu):
    def loss_of(value: torch.Tensor) -> torch.Tensor:
        return value.sin().exp().sum()

    leaf = torch.randn(SAMPLES, WIDTH, device="cuda", requires_grad=True)
    expected = torch.func.grad(loss_of)(leaf.detach())
    spill = Spill()
    with spill.all_threads():
        assert torch.equal(torch.func.grad(loss_of)(leaf.detach()), expected)
        assert torch.func.hessian(lambda value: value.square().sum())(torch.ones(2)).shape == (2, 2)
        assert spill.moved_tensors == 0
        loss_of(leaf).backward()
        assert spill.moved_tensors > 0
    assert torch.equal(leaf.grad, expected)
