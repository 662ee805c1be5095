"""Guarded steps: results, return values, and the state after out-of-memory errors."""

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from tests.unit.train.guarded import cross_entropy_of, gradients, guarded, small_batch, small_model
from torch import nn

import legroom
from legroom import Guard, VirtualGPU
from legroom.errors import LegroomError, UsageError


def same(ours, theirs):
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


# --- without out-of-memory errors


@pytest.mark.slow
def test_a_step_is_bit_for_bit_equal_to_a_plain_step():
    plain, ours = small_model(0.3), small_model(0.3)
    x, y = small_batch(device="cpu")
    optimizer = torch.optim.Adam(plain.parameters())
    guard = Guard(ours, torch.optim.Adam(ours.parameters()))
    torch.manual_seed(5)
    losses = []
    for _ in range(3):
        loss = F.cross_entropy(plain(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    torch.manual_seed(5)
    assert same([guard.step(cross_entropy_of(ours), x, y) for _ in range(3)], losses)
    assert same(ours.parameters(), plain.parameters())
    assert guard.last_step == legroom.train.guarding.guard.StepSummary((10,), 1, ())


def test_gradients_are_none_after_a_step_and_the_loss_is_detached():
    model = small_model()
    loss = guarded(model).step(cross_entropy_of(model), *small_batch(device="cpu"))
    assert not loss.requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())


def test_backward_adds_to_gradients_and_optimizer_step_ends_the_step():
    model, plain = small_model(), small_model()
    guard = guarded(model)
    x, y = small_batch(device="cpu")
    guard.backward(cross_entropy_of(model), x[:4], y[:4])
    guard.backward(cross_entropy_of(model), x[4:], y[4:])
    F.cross_entropy(plain(x[:4]), y[:4]).backward()
    F.cross_entropy(plain(x[4:]), y[4:]).backward()
    for ours, theirs in zip(gradients(model), gradients(plain), strict=True):
        torch.testing.assert_close(ours, theirs)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    guard.optimizer_step()
    assert not same(model.parameters(), before)


def test_keyword_arguments_and_models_that_return_their_loss_are_supported():
    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = small_model()

        def forward(self, inputs, labels):
            return type("Output", (), {"loss": F.cross_entropy(self.inner(inputs), labels)})()

    model = WithLoss()
    x, y = small_batch(device="cpu")
    loss = guarded(model, max_micro_batch_size=4).step(model, inputs=x, labels=y)
    assert loss.dim() == 0


def test_precision_scales_the_loss_and_steps_the_optimizer():
    with VirtualGPU("1GiB"):
        model = small_model().cuda()
        guard = guarded(model, precision="fp16", max_micro_batch_size=4, clip_norm=1.0)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        guard.step(cross_entropy_of(model), *small_batch())
        assert guard.scaler is not None
        assert not same(model.parameters(), before)


# --- equal gradients, whole and split


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("micro", [1, 3, 4, 7])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_gradients_of_a_split_batch_equal_those_of_the_whole(dtype, tolerance, micro, reduction):
    whole, split = small_model().to(dtype), small_model().to(dtype)
    x, y = small_batch(batch_size=11, device="cpu")
    x = x.to(dtype)
    expected = F.cross_entropy(whole(x), y, reduction=reduction)
    expected.backward()
    guard = guarded(split, max_micro_batch_size=micro)
    loss = guard.backward(lambda x, y: F.cross_entropy(split(x), y, reduction=reduction), x, y)
    assert len(guard.last_step.split) == -(-11 // micro)
    assert abs(loss - expected) <= tolerance * abs(expected)
    for ours, theirs in zip(gradients(split), gradients(whole), strict=True):
        assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max()
    assert guard.findings == []


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_a_mean_over_tokens_is_weighted_by_the_token_count(dtype, tolerance):
    whole, split = small_model().to(dtype), small_model().to(dtype)
    x = torch.randn(7, 5, 6, dtype=dtype)
    y = torch.randint(0, 3, (7, 5))
    y[0] = -100  # the mean of a sample without tokens is NaN
    y[1:, 3:] = -100
    y[4, 1:] = -100

    def loss_of(model):
        return lambda x, y: F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=-100)

    expected = loss_of(whole)(x, y)
    expected.backward()
    guard = guarded(split, max_micro_batch_size=1, weight=lambda x, y: (y != -100).sum())
    loss = guard.backward(loss_of(split), x, y)
    assert abs(loss - expected) <= tolerance * abs(expected)
    for ours, theirs in zip(gradients(split), gradients(whole), strict=True):
        assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max()
    assert guard.findings == []


# --- out-of-memory errors


def test_an_oom_splits_the_batch_and_keeps_loss_and_gradients():
    plain = small_model(width=512)
    x, y = small_batch(batch_size=8_000, device="cpu")
    expected = F.cross_entropy(plain(x), y)
    expected.backward()
    with VirtualGPU("40MiB"):
        model = small_model(width=512).cuda()
        guard = guarded(model)
        loss = guard.backward(cross_entropy_of(model), x.cuda(), y.cuda())
        assert len(guard.last_step.split) > 1
        assert guard.last_step.attempts > 1
        assert sum(guard.last_step.split) == 8_000
        torch.testing.assert_close(loss.cpu(), expected.detach())
        for ours, theirs in zip(gradients(model), gradients(plain), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


def test_tensors_of_the_failed_attempt_are_freed_before_the_retry():
    with VirtualGPU("1GiB") as gpu:
        model = small_model().cuda()
        seen: list[weakref.ref] = []
        alive: list[int] = []
        stored = []

        def loss_fn(x, y):
            alive.append(sum(reference() is not None for reference in seen))
            hidden = model(x)
            seen.extend((weakref.ref(hidden), weakref.ref(hidden.untyped_storage())))
            try:
                if len(seen) == 2:
                    gpu.fail_allocation(1)
                return F.cross_entropy(hidden, y)
            except torch.OutOfMemoryError as error:
                stored.append(error)  # as loggers and notebooks do
                raise

        guarded(model, reduction="mean").step(loss_fn, *small_batch())
        assert stored
        assert len(alive) > 1
        assert not any(alive)


def test_allocated_memory_is_restored_before_the_retry():
    with VirtualGPU("1GiB") as gpu:
        model = small_model().cuda()
        batch = small_batch()
        guard = guarded(model, reduction="mean")
        guard.step(cross_entropy_of(model), *batch)
        before, found = torch.cuda.memory_allocated(), []

        def loss_fn(x, y):
            found.append(torch.cuda.memory_allocated() - before)
            return F.cross_entropy(model(x), y)

        gpu.fail_allocation(4)
        guard.step(loss_fn, *batch)
        assert found[0] == found[1]


def test_accumulated_gradients_survive_an_oom_in_backward():
    def run(fail):
        with VirtualGPU("1GiB") as gpu:
            model = small_model().cuda()
            x, y = small_batch()
            guard = guarded(model, max_micro_batch_size=2)
            guard.backward(cross_entropy_of(model), x[:4], y[:4])
            begin = gpu.allocations
            if fail:
                gpu.fail_allocation(fail)
            guard.backward(cross_entropy_of(model), x[4:6], y[4:6])
            return gradients(model), gpu.allocations - begin, guard.last_step

    expected, allocations, _ = run(None)
    for number in range(1, allocations + 1, 3):
        found, _, last = run(number)
        assert last.split == (2,)  # memory was free, so the same size is tried again
        assert last.attempts == 2
        assert same(found, expected)


def test_finished_micro_batches_are_kept_if_a_later_one_fails_in_forward():
    with VirtualGPU("1GiB") as gpu:
        model = small_model().cuda()
        calls = []

        def loss_fn(x, y):
            calls.append(len(x))
            if calls == [4, 4]:
                gpu.fail_allocation(1)
            return F.cross_entropy(model(x), y)

        guard = guarded(model, max_micro_batch_size=4, reduction="mean")
        guard._is_coupling_checked = True
        guard.step(loss_fn, *small_batch(batch_size=8))
        assert calls[:2] == [4, 4]
        assert sum(calls[2:]) == 4  # the first four samples were not computed again
        assert guard.last_step.split[0] == 4
        assert guard.last_step.attempts == 2


def test_other_errors_are_raised_unchanged_with_the_state_that_pytorch_leaves():
    model = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
    plain = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
    plain.load_state_dict(model.state_dict())
    x, y = small_batch(device="cpu")

    class CustomError(Exception):
        pass

    def failing(network):
        def loss_fn(x, y):
            F.cross_entropy(network(x), y).backward()
            torch.rand(3)
            raise CustomError("wrong labels")

        return loss_fn

    F.cross_entropy(plain(x), y).backward()
    torch.manual_seed(3)
    with pytest.raises(CustomError, match="wrong labels"):
        failing(plain)(x, y)
    state = torch.get_rng_state()
    guard = guarded(model)
    F.cross_entropy(model(x), y).backward()
    torch.manual_seed(3)
    with pytest.raises(CustomError, match="wrong labels"):
        guard.step(failing(model), x, y)
    assert same(gradients(model), gradients(plain))
    assert same(model.buffers(), plain.buffers())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.slow
def test_sizes_are_cached_for_the_next_run(tmp_path, monkeypatch):
    monkeypatch.setenv("LEGROOM_CACHE", str(tmp_path))
    x, y = small_batch(batch_size=8_000, device="cpu")
    attempts = []
    for _ in range(2):
        with VirtualGPU("40MiB"):
            model = small_model(width=512).cuda()
            guard = guarded(model)
            guard.step(cross_entropy_of(model), x.cuda(), y.cuda())
            attempts.append(guard.last_step.attempts)
    assert attempts[0] > 1
    assert attempts[1] == 1


# --- bad input


@pytest.mark.parametrize(
    ("loss_fn", "message"),
    [
        (lambda model, x, y: model(x), r"The loss has shape \(10, 3\), but must have one element"),
        (lambda model, x, y: 3.0, "The loss function must return a tensor with one element, .*, not float"),
        (
            lambda model, x, y: F.cross_entropy(model(x).detach(), y),
            "does not depend on any trainable parameter",
        ),
    ],
)
def test_an_invalid_loss_is_rejected(loss_fn, message):
    model = small_model()
    with pytest.raises(UsageError, match=message):
        guarded(model).step(lambda x, y: loss_fn(model, x, y), *small_batch(device="cpu"))


def test_a_model_on_two_devices_is_rejected():
    with VirtualGPU("1GiB", "1GiB"):
        model = nn.Sequential(nn.Linear(2, 2).to("cuda:0"), nn.Linear(2, 2).to("cuda:1"))
        with pytest.raises(UsageError, match="on cuda:0 and cuda:1, but Guard requires a single device"):
            guarded(model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reduction": "median"}, "Use 'auto', 'mean' or 'sum'"),
        ({"coupling": "loose"}, "coupling='loose' is not valid"),
        ({"fallbacks": ("magic",)}, "Valid fallbacks: 'spill', 'checkpoint', 'bf16', 'fp16'"),
        ({"max_micro_batch_size": 0}, "0 is not a valid micro-batch size"),
        ({"max_micro_batch_size": "4"}, "'4' is not a valid micro-batch size"),
        ({"clip_norm": "1"}, "clip_norm='1' is not valid"),
        ({"weight": 3}, "weight= must be a function that counts the elements of a batch, not int"),
        ({"precision": 16}, "'16' is not a valid precision"),
        ({"precision": "fp16", "scaler": torch.amp.GradScaler("cpu")}, "either precision= or scaler="),
    ],
)
def test_invalid_options_are_rejected(options, message):
    with pytest.raises(UsageError, match=message):
        guarded(small_model(), **options)


def test_arguments_in_the_wrong_order_are_rejected():
    model = small_model()
    with pytest.raises(UsageError, match="expects the model"):
        Guard(torch.optim.SGD(model.parameters()), model)
    with pytest.raises(UsageError, match="expects the optimizer"):
        Guard(model, model)


def test_a_weight_that_is_not_a_number_is_rejected():
    model = small_model()
    guard = guarded(model, max_micro_batch_size=4, weight=lambda x, y: y)
    with pytest.raises(UsageError, match="must return one number"):
        guard.step(cross_entropy_of(model), *small_batch(device="cpu"))


def test_a_single_sample_that_does_not_fit_raises_and_restores_the_state():
    with VirtualGPU("6MiB"):
        model = small_model().cuda()
        x = torch.randn(2, 400_000, 6)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        guard = guarded(model, reduction="mean", fallbacks=())
        torch.manual_seed(2)
        state = torch.get_rng_state()
        with pytest.raises(torch.OutOfMemoryError) as caught:
            guard.step(lambda x: model(x.cuda()).mean(), x)
        assert isinstance(caught.value, LegroomError)
        message = str(caught.value)
        assert "A single sample does not fit on cuda:0" in message
        assert "parameters" in message
        assert "larger GPU" in message
        assert same(model.parameters(), before)
        assert torch.equal(torch.get_rng_state(), state)
        assert all(parameter.grad is None for parameter in model.parameters())
        del caught
        gc.collect()
        assert torch.cuda.memory_allocated() < 100_000


def test_an_optimizer_operation_that_never_fits_reports_an_incomplete_step():
    with VirtualGPU("1GiB") as gpu:
        model = small_model().cuda()
        guard = Guard(model, torch.optim.Adam(model.parameters()))
        guard.backward(cross_entropy_of(model), *small_batch())
        before = [parameter.detach().cpu().clone() for parameter in model.parameters()]
        gpu.fail_allocation(1, times=1000)
        with pytest.raises(
            torch.OutOfMemoryError, match="The step is incomplete: load your latest checkpoint"
        ):
            guard.optimizer_step()
        assert same(
            [parameter.detach().cpu() for parameter in model.parameters()], before
        )  # no value is lost


def test_a_batch_in_place_of_the_loss_function_is_rejected():
    guard = guarded(small_model())
    with pytest.raises(UsageError, match="must be the loss function, not Tensor. Pass the batch after"):
        guard.step(*small_batch(device="cpu"))


def test_a_clip_norm_of_zero_is_rejected():
    with pytest.raises(UsageError, match="Pass a number above 0"):
        guarded(small_model(), clip_norm=0.0)


def test_a_guard_is_freed_without_garbage_collection():
    model = small_model()
    guard = guarded(model)
    guard.step(cross_entropy_of(model), *small_batch(device="cpu"))
    reference = weakref.ref(guard)
    gc.disable()
    try:
        del guard
        assert reference() is None
    finally:
        gc.enable()


# --- batch normalization on a single sample


@pytest.mark.parametrize(("batch_size", "split"), [(6, (2, 2, 2)), (7, (3, 2, 2)), (1, (1,)), (3, (3,))])
def test_a_split_leaves_no_single_sample_for_batch_norm(batch_size, split):
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    if batch_size == 1:
        model.eval()
    guard = guarded(model, max_micro_batch_size=2, coupling="ignore", reduction="mean")
    guard.step(cross_entropy_of(model), *small_batch(batch_size, device="cpu"))
    assert guard.last_step.split == split


@pytest.mark.parametrize("batch_size", [6, 7])
def test_batch_norm_that_does_not_fit_fails_before_single_samples(batch_size):
    with VirtualGPU("1GiB") as gpu:
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).cuda()
        guard = guarded(model, coupling="ignore", reduction="mean", fallbacks=(), cache_sizes=False)
        x, y = small_batch(batch_size)
        seen = []

        def loss(x, y):
            seen.append(len(x))
            gpu.fail_allocation(1)
            return F.cross_entropy(model(x), y)

        with pytest.raises(torch.OutOfMemoryError, match="A micro-batch of two samples"):
            guard.step(loss, x, y)
    assert min(seen) > 1
    assert seen[-1] == 2 + batch_size % 2


def test_models_without_batch_norm_are_split_down_to_single_samples():
    with VirtualGPU("1GiB") as gpu:
        model = small_model().cuda()
        guard = guarded(model, reduction="mean", fallbacks=(), cache_sizes=False)
        seen = []

        def loss(x, y):
            seen.append(len(x))
            gpu.fail_allocation(1)
            return F.cross_entropy(model(x), y)

        with pytest.raises(torch.OutOfMemoryError, match="A single sample does not fit"):
            guard.step(loss, *small_batch(6))
    assert min(seen) == 1
