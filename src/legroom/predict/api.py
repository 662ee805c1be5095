"""The public functions `estimate`, `max_batch` and `plan`. Each function accepts a model and a batch, or a step
function.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from legroom.arguments import check_count
from legroom.errors import UsageError
from legroom.gpus.catalog import GpuSpec, find_gpu, real_gpu
from legroom.gpus.machine import visible_gpus
from legroom.observe.virtual.gpu import VirtualGPU
from legroom.predict.estimate import Estimate, estimate_from_trace
from legroom.predict.fit import available_bytes
from legroom.predict.largest_batch import BatchSearch, largest_batch
from legroom.predict.options.apply import applied
from legroom.predict.options.names import MemoryOption
from legroom.predict.options.plan import PlannedOption, finish_plan, start_plan
from legroom.predict.tracing.copying import DeviceCopies, standard_step
from legroom.predict.tracing.resize import batch_size_of, resized
from legroom.predict.tracing.trace import GROWTH_STEPS, Trace
from legroom.predict.tracing.virtual_trace import finish, make_device, torch_log_disabled

MakeOptimizer = Callable[[Any], torch.optim.Optimizer]


def estimate(
    target: Any,
    *args: Any,
    gpu: str | int | GpuSpec | None = None,
    optimizer: MakeOptimizer | None = None,
    steps: int = 2,
    search: bool = True,
) -> Estimate:
    """Predict whether a training step fits on a GPU. No GPU is needed.

    `estimate(model, batch, gpu="24GiB")` builds a standard training step. `optimizer` is a function that creates the
    optimizer from the parameters. The default optimizer is AdamW. `estimate(step, *args, gpu="a100-40gb")` traces your
    own step. `gpu` is a name or a size in the format of `--gpu`. The default is the active virtual GPU, or the first
    GPU in this machine. The trace uses copies without data, so your objects do not change. `search=False` skips the
    search for the largest batch size.
    """
    traced = _Target(target, args, gpu, optimizer, steps)
    trace = traced.trace()
    largest = None
    if search and trace.batch_size is not None:
        largest = traced.search(trace).largest
    return estimate_from_trace(trace, max_batch_size=largest)


def max_batch(
    target: Any,
    *args: Any,
    gpu: str | int | GpuSpec | None = None,
    optimizer: MakeOptimizer | None = None,
    multiple_of: int = 1,
    safe: bool = False,
) -> int | None:
    """Return the largest batch size that fits, or None if not even the smallest batch fits. A trace at this batch size
    confirms that it fits.

    With `safe`, the upper bound of the estimate (`Estimate.safe`) must also fit.
    """
    check_count("multiple_of", multiple_of)
    traced = _Target(target, args, gpu, optimizer, 2)
    trace = traced.trace()
    if trace.batch_size is None:
        raise UsageError(
            "The batch size cannot be changed, because no batch was passed. Pass the batch as an argument. "
            "The first dimension of each tensor in the batch must be the batch size."
        )
    return traced.search(trace, multiple_of=multiple_of, safe=safe).largest


def plan(
    target: Any, *args: Any, gpu: str | int | GpuSpec | None = None, optimizer: MakeOptimizer | None = None
) -> list[PlannedOption]:
    """Return the options that save memory, each with its traced peak, ordered by cost."""
    traced = _Target(target, args, gpu, optimizer, 2)
    trace = traced.trace()
    current = estimate_from_trace(trace)

    def start(options: Sequence[MemoryOption]) -> Callable[[], Trace]:
        return lambda: traced.trace(options=options)

    largest: Trace | None = None
    if not current.fits and trace.batch_size is not None:
        search = traced.search(trace, safe=True)
        largest = None if search.largest is None else search.traces[search.largest]
    return finish_plan(current, start_plan(current, start), start, smaller=largest)


def _default_gpu() -> GpuSpec:
    active = VirtualGPU.active()
    if active is not None:
        return active.devices[0].spec
    for gpu in visible_gpus():
        return real_gpu(gpu.name, gpu.total)
    raise UsageError(
        "This machine has no GPU. Pass a size or a name, for example `gpu='24GiB'` or `gpu='t4'`."
    )


class _Target:
    def __init__(
        self,
        target: Any,
        args: tuple[Any, ...],
        gpu: str | int | GpuSpec | None,
        optimizer: MakeOptimizer | None,
        steps: int,
    ) -> None:
        if isinstance(target, nn.Module):
            if len(args) != 1:
                raise UsageError("Pass a model and one batch: `legroom.estimate(model, batch, gpu='24GiB')`.")
        elif not callable(target):
            raise UsageError(f"Pass a model or a step function, not {type(target).__name__}.")
        self._target, self._args, self._steps = target, args, check_count("steps", steps)
        self._gpu = _default_gpu() if gpu is None else find_gpu(gpu)
        self._optimizer = optimizer or torch.optim.AdamW

    def trace(self, batch_size: int | None = None, options: Sequence[MemoryOption] = ()) -> Trace:
        args = self._args if batch_size is None else resized(self._args, batch_size, on_host=True)
        trace = Trace(gpu=self._gpu, mode="fake", batch_size=batch_size_of(args))
        with (
            torch_log_disabled(),
            make_device(self._gpu, "fake", trace.events.append) as device,
            applied(*options),
        ):
            copies = DeviceCopies()
            if isinstance(self._target, nn.Module):
                step = standard_step(copies.copied(self._target), copies.copied(args[0]), self._optimizer)
            else:
                function, arguments = copies.copied(self._target), copies.copied(args)

                def step() -> None:
                    function(*arguments)

            steps = self._steps
            for _ in range(steps):
                step()
            while 1 < steps < GROWTH_STEPS and trace.has_grown():
                step()
                steps += 1
            finish(trace, device)
            trace.steps = steps
        return trace

    def search(self, known: Trace, *, multiple_of: int = 1, safe: bool = False) -> BatchSearch:
        assert known.batch_size is not None
        return largest_batch(
            self.trace,
            available_bytes(known),
            start=known.batch_size,
            known=known,
            multiple_of=multiple_of,
            safe=safe,
        )
