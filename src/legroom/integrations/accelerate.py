"""`legroom.Guard` with the models and optimizers of an `Accelerator`.

model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
guard = make_guard(accelerator, model, optimizer)
for x, y in loader:
    loss = guard.step(loss_fn, x, y)     # instead of accelerator.backward(loss) and optimizer.step()
"""

from importlib import import_module
from typing import Any

from legroom.errors import UsageError
from legroom.integrations.versions import check_library
from legroom.train.guarding.guard import Guard

check_library("accelerate")
_optimizers = import_module("accelerate.optimizer")
_SUPPORTED = ("NO", "MULTI_GPU", "MULTI_CPU")


def make_guard(accelerator: Any, model: Any, optimizer: Any, **options: Any) -> Guard:
    """Return a Guard for a prepared model and optimizer. `options` are the options of `legroom.Guard`.

    The precision is the accelerator's precision: its autocast runs inside the prepared model, and its GradScaler scales
    the loss. Guard splits batches itself, so pass batches of the effective size instead of setting
    `gradient_accumulation_steps`.
    """
    if accelerator.distributed_type.value not in _SUPPORTED:
        raise UsageError(
            f"Guard does not support {accelerator.distributed_type.value}. Use DDP, or use `legroom.parallel` with strategy='fsdp'."
        )
    if accelerator.gradient_accumulation_steps > 1:
        raise UsageError(
            "Guard splits batches itself. Remove `gradient_accumulation_steps`, and multiply the batch size by its value."
        )
    if not isinstance(optimizer, _optimizers.AcceleratedOptimizer):
        raise UsageError("Prepare the optimizer first: `accelerator.prepare(model, optimizer)`.")
    if "precision" in options or "scaler" in options:
        raise UsageError("Set the precision in the accelerator: `Accelerator(mixed_precision='bf16')`.")
    return Guard(model, optimizer.optimizer, scaler=accelerator.scaler, **options)
