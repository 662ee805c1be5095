"""`legroom.Guard` with a model and an optimizer that an Accelerator prepared."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import legroom
from legroom.errors import UsageError

accelerate = pytest.importorskip("accelerate")
from accelerate.state import AcceleratorState, GradientState, PartialState  # noqa: E402

from legroom.integrations.accelerate import make_guard  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _new_accelerator() -> Iterator[None]:
    """Reset the state that all accelerators of a process share."""
    yield
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def prepare(**options: Any) -> tuple[Any, nn.Module, Any]:
    torch.manual_seed(0)
    accelerator = accelerate.Accelerator(**options)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
    prepared = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return accelerator, *prepared


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([each.detach().flatten().cpu() for each in model.parameters()])


@pytest.mark.parametrize(
    ("precision", "samples", "options"), [("no", 1 << 14, {}), ("fp16", 256, {"max_micro_batch_size": 64})]
)
def test_a_guarded_step_equals_the_step_of_the_accelerator(
    precision: str, samples: int, options: dict[str, Any]
) -> None:
    x, y = torch.randn(samples, 64), torch.randn(samples, 1)
    trained = []
    for guarded in (False, True):
        with legroom.VirtualGPU("48MiB" if guarded else "1GiB"):
            accelerator, model, optimizer = prepare(mixed_precision=precision)
            batch = x.to(accelerator.device), y.to(accelerator.device)

            def loss_fn(x: torch.Tensor, y: torch.Tensor, model: nn.Module = model) -> torch.Tensor:
                return nn.functional.mse_loss(model(x), y)

            guard = (
                make_guard(accelerator, model, optimizer, cache_sizes=False, **options) if guarded else None
            )
            for _ in range(2):
                if guard is not None:
                    guard.step(loss_fn, *batch)
                else:
                    accelerator.backward(loss_fn(*batch))
                    optimizer.step()
                    optimizer.zero_grad()
            trained.append(weights(model))
            if guard is not None:
                assert guard.last_step is not None
                assert len(guard.last_step.split) > 1
            AcceleratorState._reset_state(reset_partial_state=True)
    tolerance = 1e-6 if precision == "no" else 2e-3
    torch.testing.assert_close(trained[1], trained[0], rtol=tolerance, atol=tolerance)


def test_unsupported_settings_of_the_accelerator_are_reported_in_one_line() -> None:
    accelerator, model, optimizer = prepare(gradient_accumulation_steps=4)
    with pytest.raises(UsageError, match="Remove `gradient_accumulation_steps`"):
        make_guard(accelerator, model, optimizer)
    accelerator.gradient_accumulation_steps = 1
    with pytest.raises(UsageError, match="Prepare the optimizer first"):
        make_guard(accelerator, model, optimizer.optimizer)
    with pytest.raises(UsageError, match="Set the precision in the accelerator"):
        make_guard(accelerator, model, optimizer, precision="bf16")
