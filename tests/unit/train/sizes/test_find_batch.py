"""The largest batch on the GPU at hand: found by running it, with everything as before afterwards."""

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
from legroom.train.sizes.find_batch import Found, find_batch

SIZE = "64MiB"


class Training:
    """A small network with all that a step can change."""

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


def on_gpu(find: Callable[[Training], Found], size: str = SIZE) -> Found:
    with legroom.VirtualGPU(size):
        return find(Training())


def runs(size: int, gpu: str = SIZE) -> bool:
    with legroom.VirtualGPU(gpu):
        return Training().runs(size)


@pytest.fixture(scope="module")
def found() -> Found:
    return on_gpu(lambda training: find_batch(training.step, make_batch))


class TestWhatIsFound:
    def test_is_the_largest_that_runs(self, found: Found) -> None:
        assert runs(found.size)
        assert not runs(round(found.size * 1.03) + 1)

    def test_was_run(self, found: Found) -> None:
        assert found.size in [trial.size for trial in found.trials if trial.fits]

    def test_took_four_trials_at_most_and_no_failure(self, found: Found) -> None:
        assert len(found.trials) <= 4
        assert found.ooms == 0

    def test_says_why(self, found: Found) -> None:
        assert str(found).startswith(f"{found.size} rows ran in ")
        assert "none of them out of memory" in found.reason

    def test_can_be_a_multiple(self) -> None:
        found = on_gpu(lambda training: find_batch(training.step, make_batch, multiple_of=16))
        assert found.size % 16 == 0
        assert not runs(found.size + 32)

    def test_is_no_more_than_was_allowed(self) -> None:
        found = on_gpu(lambda training: find_batch(training.step, make_batch, most=20))
        assert found.size == 20
        assert "no more were allowed" in found.reason

    def test_leaves_what_was_to_be_left(self) -> None:
        found = on_gpu(lambda training: find_batch(training.step, make_batch, leave="24MiB"))
        assert found.peak <= 40 * 2**20
        assert runs(found.size, "40MiB")

    def test_counts_the_cap_of_this_process(self) -> None:
        def capped(training: Training) -> Found:
            torch.cuda.set_per_process_memory_fraction(0.5)
            return find_batch(training.step, make_batch)

        assert runs(on_gpu(capped).size, "32MiB")

    def test_counts_what_is_already_there(self, found: Found) -> None:
        def beside(training: Training) -> Found:
            ballast = torch.zeros(24 << 20, dtype=torch.uint8, device="cuda")
            less = find_batch(training.step, make_batch)
            del ballast
            return less

        assert on_gpu(beside).size < 0.8 * found.size

    def test_counts_state_that_the_optimizers_first_step_makes(self) -> None:
        with legroom.VirtualGPU("48MiB"):
            wide = nn.Linear(1024, 1024, bias=False).cuda()
            optimizer = torch.optim.Adam(wide.parameters())

            def step(x: Tensor) -> None:
                optimizer.zero_grad()
                wide(x.cuda()).square().mean().backward()
                optimizer.step()

            found = find_batch(step, lambda size: torch.randn(size, 1024))
            for _ in range(4):
                step(torch.randn(found.size, 1024))

    def test_memory_that_grows_with_the_square_of_the_rows_fails_once_at_most(self) -> None:
        with legroom.VirtualGPU("24MiB"):
            model = nn.Linear(16, 16).cuda()

            def step(x: Tensor) -> None:
                z = model(x.cuda())
                F.cross_entropy(z @ z.T, torch.arange(len(z), device="cuda")).backward()

            found = find_batch(step, lambda size: torch.randn(size, 16))
            assert found.ooms <= 1
            with pytest.raises(torch.OutOfMemoryError):
                step(torch.randn(round(found.size * 1.05), 16))

    def test_a_first_size_that_is_too_large_is_survived(self) -> None:
        found = on_gpu(lambda training: find_batch(training.step, make_batch, start=100_000 // 16))
        assert found.ooms >= 1
        assert runs(found.size)


class TestAfterwards:
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
    def test_everything_is_as_before_bit_for_bit(self, steps_before: int, make_optimizer: Any) -> None:
        with legroom.VirtualGPU(SIZE):
            training = Training(make_optimizer)
            for _ in range(steps_before):
                training.step(*make_batch(4))
            before = self.state(training)
            find_batch(training.step, make_batch, most=64)
            torch.testing.assert_close(self.state(training), before, rtol=0, atol=0)

    def test_training_goes_on_as_if_nothing_had_been_tried(self) -> None:
        results = []
        for tries in (False, True):
            with legroom.VirtualGPU(SIZE):
                training = Training()
                training.step(*make_batch(4))
                if tries:
                    find_batch(training.step, make_batch, most=64)
                training.step(*make_batch(4))
                results.append(self.state(training))
        torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)

    def test_a_loader_gives_the_same_batches(self) -> None:
        with legroom.VirtualGPU(SIZE):
            training = Training()
            data = TensorDataset(*make_batch(40))
            loader = DataLoader(data, 8, shuffle=True, generator=torch.Generator().manual_seed(3))
            expected = [
                x.sum().item()
                for x, _ in DataLoader(data, 8, shuffle=True, generator=torch.Generator().manual_seed(3))
            ]
            find_batch(training.step, loader, most=32)
            assert [x.sum().item() for x, _ in loader] == expected

    def test_the_device_is_as_empty_as_before(self) -> None:
        with legroom.VirtualGPU(SIZE):
            training = Training()
            before = torch.cuda.memory_allocated()
            find_batch(training.step, make_batch, most=64)
            assert torch.cuda.memory_allocated() == before

    def test_an_error_that_is_not_about_memory_passes_and_all_is_as_before(self) -> None:
        with legroom.VirtualGPU(SIZE):
            training = Training()
            before = self.state(training)

            def step(x: Tensor, y: Tensor) -> None:
                training.step(x, y)
                if len(x) > 10:
                    raise ZeroDivisionError("mine")

            with pytest.raises(ZeroDivisionError, match="mine"):
                find_batch(step, make_batch)
            torch.testing.assert_close(self.state(training), before, rtol=0, atol=0)


class TestBatches:
    def test_a_batch_is_repeated_to_any_size(self) -> None:
        found = on_gpu(lambda training: find_batch(training.step, make_batch(8)))
        assert runs(found.size)
        assert found.size > 8

    def test_an_iterator_is_refused(self) -> None:
        with pytest.raises(UsageError, match="used up"):
            on_gpu(lambda training: find_batch(training.step, iter([make_batch(4)])))

    def test_a_batch_without_rows_is_refused(self) -> None:
        with pytest.raises(UsageError, match="no batch size to vary"):
            on_gpu(lambda training: find_batch(training.step, {"a": 3}))


def test_one_row_that_does_not_fit_says_what_to_do() -> None:
    def step(x: Tensor) -> None:
        torch.zeros(1 << 30, dtype=torch.uint8, device="cuda")

    with pytest.raises(LegroomError, match="not even a single row fits into 64.0 MiB: see what"):
        on_gpu(lambda training: find_batch(step, torch.zeros(4, 2)))


def test_without_a_gpu_it_says_what_can_be_done() -> None:
    with pytest.raises(UsageError, match="VirtualGPU"):
        find_batch(lambda x: None, torch.zeros(4, 2))


class TestWithAGuard:
    def test_its_largest_micro_batch_is_found_and_all_is_as_before(self) -> None:
        with legroom.VirtualGPU(SIZE):
            training = Training()
            guard = legroom.Guard(training.model, training.optimizer)
            before = copy.deepcopy({k: v.cpu() for k, v in training.model.state_dict().items()})

            def loss_fn(x: Tensor, y: Tensor) -> Tensor:
                return F.cross_entropy(training.model(x.cuda()), y.cuda())

            found = find_batch(guard, make_batch, loss_fn=loss_fn)
            torch.testing.assert_close({k: v.cpu() for k, v in training.model.state_dict().items()}, before)
            guard.step(loss_fn, *make_batch(found.size))
            assert guard.last is not None
            assert guard.last.split == (found.size,)

    def test_the_loss_function_is_asked_for(self) -> None:
        with legroom.VirtualGPU(SIZE):
            training = Training()
            guard = legroom.Guard(training.model, training.optimizer)
            with pytest.raises(UsageError, match="loss_fn"):
                find_batch(guard, make_batch)
