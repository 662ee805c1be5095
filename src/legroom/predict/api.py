"""The public functions: `estimate`, `max_batch` and `plan`, for a model and a batch or for a step of one's own."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from legroom.errors import UsageError
from legroom.gpus.catalog import GpuSpec, find_gpu
from legroom.predict.estimate import Estimate, judge
from legroom.predict.fit import beside
from legroom.predict.largest_batch import Search, largest_batch
from legroom.predict.options.apply import in_force
from legroom.predict.options.names import Means
from legroom.predict.options.plan import Option, finish_plan, start_plan
from legroom.predict.tracing.copying import OntoDevice, standard_step
from legroom.predict.tracing.resize import batch_size_of, resized
from legroom.predict.tracing.trace import Trace
from legroom.predict.tracing.virtual_trace import finish, make_device

MakeOptimizer = Callable[[Any], torch.optim.Optimizer]


def estimate(
    target: Any,
    *args: Any,
    gpu: str | int | GpuSpec,
    optimizer: MakeOptimizer | None = None,
    steps: int = 2,
    search: bool = True,
) -> Estimate:
    """Whether a training step fits a GPU, without one.

    `estimate(model, batch, gpu="24GiB")` builds the standard step (`optimizer`: a function of the parameters, AdamW by
    default); `estimate(step, *args, gpu="a100-40gb")` traces a step of your own. Nothing of yours is changed: the
    trace works on copies without data. `search=False` leaves out the largest batch.
    """
    job = _Job(target, args, gpu, optimizer, steps)
    trace = job.trace()
    largest = None
    if search and trace.batch_size is not None:
        largest = job.largest(trace).largest
    return judge(trace, max_batch_size=largest)


def max_batch(
    target: Any,
    *args: Any,
    gpu: str | int | GpuSpec,
    optimizer: MakeOptimizer | None = None,
    multiple_of: int = 1,
    safe: bool = False,
) -> int | None:
    """The largest batch that fits, traced at that very size; None if not even the smallest does.

    `safe`: it must fit with the doubt about kernels' own memory added.
    """
    job = _Job(target, args, gpu, optimizer, 2)
    trace = job.trace()
    if trace.batch_size is None:
        raise UsageError(
            "no batch size to vary: give the batch as an argument whose tensors have it as first dimension"
        )
    return job.largest(trace, multiple_of=multiple_of, safe=safe).largest


def plan(
    target: Any, *args: Any, gpu: str | int | GpuSpec, optimizer: MakeOptimizer | None = None
) -> list[Option]:
    """What would save memory, each re-traced with its peak, ordered by price."""
    job = _Job(target, args, gpu, optimizer, 2)
    trace = job.trace()
    now = judge(trace)

    def start(means: Sequence[Means]) -> Callable[[], Trace]:
        return lambda: job.trace(means=means)

    largest: Trace | None = None
    if not now.fits and trace.batch_size is not None:
        search = job.largest(trace)
        largest = None if search.largest is None else search.traces[search.largest]
    return finish_plan(now, start_plan(now, start), start, largest=largest)


@contextlib.contextmanager
def _torch_says_it_once() -> Iterator[None]:
    """A step that fails raises its error; torch would log the same with a traceback of its own besides."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was_disabled


class _Job:
    """One thing to trace, as often as wanted."""

    def __init__(
        self,
        target: Any,
        args: tuple[Any, ...],
        gpu: str | int | GpuSpec,
        optimizer: MakeOptimizer | None,
        steps: int,
    ) -> None:
        if isinstance(target, nn.Module):
            if len(args) != 1:
                raise UsageError("give a model and one batch: legroom.estimate(model, batch, gpu='24GiB')")
        elif not callable(target):
            raise UsageError(f"give a model or a step function, not a {type(target).__name__}")
        self._target, self._args, self._steps = target, args, steps
        self._gpu = find_gpu(gpu)
        self._optimizer = optimizer or torch.optim.AdamW

    def trace(self, batch_size: int | None = None, means: Sequence[Means] = ()) -> Trace:
        args = self._args if batch_size is None else resized(self._args, batch_size)
        trace = Trace(gpu=self._gpu, mode="fake", batch_size=batch_size_of(args))
        with (
            _torch_says_it_once(),
            make_device(self._gpu, "fake", trace.events.append) as device,
            in_force(*means),
        ):
            onto = OntoDevice()
            if isinstance(self._target, nn.Module):
                step = standard_step(onto.copied(self._target), onto.copied(args[0]), self._optimizer)
            else:
                function, given = onto.copied(self._target), onto.copied(args)

                def step() -> None:
                    function(*given)

            for _ in range(self._steps):
                step()
            finish(trace, device)
            trace.steps = self._steps
        return trace

    def largest(self, known: Trace, *, multiple_of: int = 1, safe: bool = False) -> Search:
        assert known.batch_size is not None
        return largest_batch(
            self.trace,
            self._gpu.total - beside(known),
            start=known.batch_size,
            known=known,
            multiple_of=multiple_of,
            safe=safe,
        )
