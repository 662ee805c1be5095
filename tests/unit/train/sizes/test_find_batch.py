"""The largest batch size on the current GPU: found by running it, with the state restored afterwards."""

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import legroom
from legroom.errors import LegroomError, UsageError
from legroom.train.sizes.find_batch import FoundBatchSize, find_batch

SIZE = "64MiB"


class Training:
    """A small model with all kinds of state that a step can change."""

    def __init__(self, make_optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.1),
            nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 10),
        ).cuda()  # fmt: skip
        self.optimizer = make_optimizer(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.losses: list[float] = []
        self.count = 0

    def step(self, x: Tensor, y: Tensor) -> None:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x.cuda()), y.cuda())
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.losses.append(loss.item())
        self.count += 1

    def runs(self, size: int) -> bool:
        failed = False
        try:
            for _ in range(3):
                self.step(*make_batch(size))
        except torch.OutOfMemoryError:
            failed = True
        return not failed


def make_batch(size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(size, 3, 16, 16), torch.randint(0, 10, (size,))


def on_gpu(find: Callable[[Training], FoundBatchSize], size: str = SIZE) -> FoundBatchSize:
    with legroom.VirtualGPU(size):
        return find(Training())


def runs(size: int, gpu: str = SIZE) -> bool:
    with legroom.VirtualGPU(gpu):
        return Training().runs(size)


@pytest.fixture(scope="module")
def found() -> FoundBatchSize:
    return on_gpu(lambda training: find_batch(training.step, make_batch))


class TestResult:
    @pytest.mark.slow
    def test_the_result_is_the_largest_size_that_fits(self, found: FoundBatchSize) -> None:
        assert runs(found.batch_size)
        assert not runs(round(found.batch_size * 1.03) + 1)

    @pytest.mark.slow
    def test_the_result_was_run(self, found: FoundBatchSize) -> None:
        assert found.batch_size in [trial.batch_size for trial in found.trials if trial.fits]

    @pytest.mark.slow
    def test_the_search_needs_at_most_four_trials_and_no_failure(self, found: FoundBatchSize) -> None:
        assert len(found.trials) <= 4
        assert found.oom_count == 0

    @pytest.mark.slow
    def test_the_result_has_a_reason(self, found: FoundBatchSize) -> None:
        assert str(found).startswith(f"A batch size of {found.batch_size} uses ")
        assert "none ran out of memory" in found.reason

    @pytest.mark.slow
    def test_the_result_is_a_multiple_of_the_option(self) -> None:
        found = on_gpu(lambda training: find_batch(training.step, make_batch, multiple_of=16))
        assert found.batch_size % 16 == 0
        assert not runs(found.batch_size + 32)

    def test_the_result_does_not_exceed_the_maximum(self) -> None:
        found = on_gpu(lambda training: find_batch(training.step, make_batch, max_batch_size=20))
        assert found.batch_size == 20
        assert "maximum allowed size is 20" in found.reason

    def test_the_reason_for_a_single_trial_is_in_the_singular(self) -> None:
        found = on_gpu(lambda training: find_batch(training.step, make_batch, max_batch_size=1))
        assert len(found.trials) == 1
        assert found.reason.endswith(" No other size was tested. The maximum allowed size is 1.")

    @pytest.mark.slow
    def test_the_result_leaves_memory_free(self) -> None:
        found = on_gpu(lambda training: find_batch(training.step, make_batch, leave_free="24MiB"))
        assert found.peak_reserved <= 40 * 2**20
        assert runs(found.batch_size, "40MiB")

    @pytest.mark.slow
    def test_the_memory_fraction_of_the_process_is_respected(self) -> None:
        def limited(training: Training) -> FoundBatchSize:
            torch.cuda.set_per_process_memory_fraction(0.5)
            return find_batch(training.step, make_batch)

        assert runs(on_gpu(limited).batch_size, "32MiB")

    @pytest.mark.slow
    def test_memory_that_is_already_allocated_is_respected(self, found: FoundBatchSize) -> None:
        def with_other_tensors(training: Training) -> FoundBatchSize:
            other = torch.zeros(24 << 20, dtype=torch.uint8, device="cuda")
            result = find_batch(training.step, make_batch)
            del other
            return result

        assert on_gpu(with_other_tensors).batch_size < 0.8 * found.batch_size

    @pytest.mark.slow
    def test_optimizer_state_that_the_first_step_creates_is_included(self) -> None:
        with legroom.VirtualGPU("48MiB"):
            wide = nn.Linear(1024, 1024, bias=False).cuda()
            optimizer = torch.optim.Adam(wide.parameters())

            def step(x: Tensor) -> None:
                optimizer.zero_grad()
                wide(x.cuda()).square().mean().backward()
                optimizer.step()

            found = find_batch(step, lambda size: torch.randn(size, 1024))
            for _ in range(4):
                step(torch.randn(found.batch_size, 1024))

    @pytest.mark.slow
    def test_quadratic_memory_growth_fails_at_most_once(self) -> None:
        with legroom.VirtualGPU("24MiB"):
            model = nn.Linear(16, 16).cuda()

            def step(x: Tensor) -> None:
                z = model(x.cuda())
                F.cross_entropy(z @ z.T, torch.arange(len(z), device="cuda")).backward()

            found = find_batch(step, lambda size: torch.randn(size, 16))
            assert found.oom_count <= 1
            with pytest.raises(torch.OutOfMemoryError):
                step(torch.randn(round(found.batch_size * 1.05), 16))

    @pytest.mark.slow
    def test_the_search_recovers_from_a_first_size_that_is_too_large(self) -> None:
        found = on_gpu(lambda training: find_batch(training.step, make_batch, start=100_000 // 16))
        assert found.oom_count >= 1
        assert runs(found.batch_size)


class TestRestoredState:
    def state(self, training: Training) -> list[Any]:
        return [
            copy.deepcopy({k: v.cpu() for k, v in training.model.state_dict().items()}),
            [None if p.grad is None else p.grad.cpu().clone() for p in training.model.parameters()],
            copy.deepcopy(training.optimizer.state_dict()),
            copy.deepcopy(training.scheduler.state_dict()),
            list(training.losses),
            training.count,
            torch.get_rng_state(),
            torch.cuda.get_rng_state(),
            random.getstate(),
        ]

    @pytest.mark.parametrize("steps_before", [0, 2])
    @pytest.mark.parametrize("make_optimizer", [torch.optim.Adam, torch.optim.SGD])
    def test_the_state_is_restored_bit_for_bit(self, steps_before: int, make_optimizer: Any) -> None:
        with legroom.VirtualGPU(SIZE):
            training = Training(make_optimizer)
            for _ in range(steps_before):
                training.step(*make_batch(4))
            before = self.state(training)
            find_batch(training.step, make_batch, max_batch_size=64)
            torch.testing.assert_close(self.state(training), before, rtol=0, atol=0)

    @pytest.mark.slow
    def test_training_continues_as_without_the_search(self) -> None:
        results = []
        for searches in (False, True):
            with legroom.VirtualGPU(SIZE):
                training = Training()
                training.step(*make_batch(4))
                if searches:
                    find_batch(training.step, make_batch, max_batch_size=64)
                training.step(*make_batch(4))
                results.append(self.state(training))
        torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)

    def test_a_loader_yields_the_same_batches(self) -> None:
        with legroom.VirtualGPU(SIZE):
            training = Training()
            data = TensorDataset(*make_batch(40))
            loader = DataLoader(data, 8, shuffle=True, generator=torch.Generator().manual_seed(3))
            expected = [
                x.sum().item()
                for x, _ in DataLoader(data, 8, shuffle=True, generator=torch.Generator().manual_seed(3))
            ]
            find_batch(training.step, loader, max_batch_size=32)
            assert [x.sum().item() for x, _ in loader] == expected

    def test_allocated_memory_is_restored(self) -> None:
        with legroom.VirtualGPU(SIZE):
            training = Training()
            before = torch.cuda.memory_allocated()
            find_batch(training.step, make_batch, max_batch_size=64)
            assert torch.cuda.memory_allocated() == before

    def test_other_errors_are_raised_and_the_state_is_restored(self) -> None:
        with legroom.VirtualGPU(SIZE):
            training = Training()
            before = self.state(training)

            def step(x: Tensor, y: Tensor) -> None:
                training.step(x, y)
                if len(x) > 10:
                    raise ZeroDivisionError("custom")

            with pytest.raises(ZeroDivisionError, match="custom"):
                find_batch(step, make_batch)
            torch.testing.assert_close(self.state(training), before, rtol=0, atol=0)


class TestBatches:
    @pytest.mark.slow
    def test_a_batch_is_repeated_to_any_size(self) -> None:
        found = on_gpu(lambda training: find_batch(training.step, make_batch(8)))
        assert runs(found.batch_size)
        assert found.batch_size > 8

    def test_an_iterator_is_rejected(self) -> None:
        with pytest.raises(UsageError, match="find_batch would exhaust"):
            on_gpu(lambda training: find_batch(training.step, iter([make_batch(4)])))

    def test_a_batch_without_tensors_is_rejected(self) -> None:
        with pytest.raises(UsageError, match="The batch size cannot be changed"):
            on_gpu(lambda training: find_batch(training.step, {"a": 3}))


def test_a_single_sample_that_does_not_fit_raises_with_advice() -> None:
    def step(x: Tensor) -> None:
        torch.zeros(1 << 30, dtype=torch.uint8, device="cuda")

    with pytest.raises(LegroomError, match="A single sample does not fit into 64.0 MiB. Run `legroom run`"):
        on_gpu(lambda training: find_batch(step, torch.zeros(4, 2)))


def test_without_a_gpu_the_error_names_the_alternatives() -> None:
    with pytest.raises(UsageError, match="VirtualGPU"):
        find_batch(lambda x: None, torch.zeros(4, 2))


class TestWithAGuard:
    @pytest.mark.slow
    def test_the_largest_micro_batch_of_a_guard_is_found_and_the_state_is_restored(self) -> None:
        with legroom.VirtualGPU(SIZE):
            training = Training()
            guard = legroom.Guard(training.model, training.optimizer)
            before = copy.deepcopy({k: v.cpu() for k, v in training.model.state_dict().items()})

            def loss_fn(x: Tensor, y: Tensor) -> Tensor:
                return F.cross_entropy(training.model(x.cuda()), y.cuda())

            found = find_batch(guard, make_batch, loss_fn=loss_fn)
            torch.testing.assert_close({k: v.cpu() for k, v in training.model.state_dict().items()}, before)
            guard.step(loss_fn, *make_batch(found.batch_size))
            assert guard.last_step is not None
            assert guard.last_step.split == (found.batch_size,)

    def test_a_guard_requires_the_loss_function(self) -> None:
        with legroom.VirtualGPU(SIZE):
            training = Training()
            guard = legroom.Guard(training.model, training.optimizer)
            with pytest.raises(UsageError, match="loss_fn"):
                find_batch(guard, make_batch)
