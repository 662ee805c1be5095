"""Estimates the memory of a configuration in the background before its trial starts. Configurations with the same
memory use share one estimate.

A worker thread traces one configuration at a time, starting with the full batch. If the full batch does not fit, the
thread traces the smallest micro-batch and searches for the largest micro-batch that fits, by linear interpolation. Full
batches have priority over micro-batches, because a configuration that fits unsplit can start immediately.

Two configurations share an estimate if they differ only in parameters that do not affect memory, such as a learning
rate. Whether a float parameter affects memory is determined by tracing both ends of its range. If both ends request
exactly the same memory as the first configuration, the parameter is ignored in the comparison. The ends of a range are
traced only after two configurations differed in float parameters alone. Integers and choices are always compared,
unless the user lists the parameters that affect memory.

Traces of micro-batches and range ends have a lower priority than running trials.

If a trial runs out of memory although its estimate fits, all later estimates are increased by the missing amount.
Estimates are then no longer shared. The increase can cause a batch to be split, or prevent two trials from sharing a
GPU, but no trial is rejected. A trial that fits only without the increase gets a GPU to itself.
"""

import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

from legroom.tuning.memory.admission import NO_GPU, Admission, AdmissionVerdict, Fit, TrialGpu
from legroom.tuning.memory.other_processes import OtherProcessUsage
from legroom.tuning.memory.tracer import CannotEstimate, Tracer, TraceResult
from legroom.tuning.space.domains import FloatRange
from legroom.tuning.space.space import Config, Space
from legroom.tuning.trial.function import TrainFunction
from legroom.units import format_size

MAX_TRACES = 4
NEAR = 0.75
"""The search for a micro-batch size ends when the largest size that fits is at least this fraction of the smallest
size that does not fit."""
FULL_BATCH, MICRO_BATCHES, RANGE_ENDS = range(3)
"""The priorities of traces, highest first: full batches, micro-batches, and the ends of ranges."""
OOM_MARGIN = 1.05
"""The assumed ratio between the memory that a failed trial needed and the memory that it used. A trial that runs out of
memory needs more than it was able to allocate.
"""


class OpenGate:
    """The gate for trials on the CPU, which admits every configuration."""

    has_unseen_configs = False

    def request(self, config: Config, checkpoint: str | None = None) -> "Future[Admission]":
        answer: Future[Admission] = Future()
        answer.set_result(NO_GPU)
        return answer

    def record_oom(self, config: Config, fit: Fit, needed: int) -> None:
        pass  # there are no estimates to correct

    def close(self) -> None:
        pass


@dataclass(slots=True)
class _TracedConfig:
    """The trace results of one configuration."""

    config: Config
    checkpoint: str | None
    """The checkpoint that the function loads, or None for a new trial."""
    traces: dict[int | None, dict[int, TraceResult]]
    """The results for each micro-batch size (None for the full batch) and each GPU index."""


class MemoryGate:
    def __init__(
        self,
        function: TrainFunction,
        gpus: Sequence[TrialGpu],
        space: Space,
        *,
        ranks: int = 1,
        shape_parameters: frozenset[str] | None = None,
        other_processes: OtherProcessUsage | None = None,
    ) -> None:
        self._gpus, self._space = list(gpus), space
        self._other_processes = other_processes or OtherProcessUsage(gpus)
        self._tracers = [Tracer(function, list(alike), ranks) for alike in _by_kind(gpus)]
        self._memory_parameters = set(space.names) if shape_parameters is None else set(shape_parameters)
        """The parameters that must be equal in two configurations that share an estimate."""
        self._to_probe = (
            {p.name for p in space.parameters if isinstance(p.domain, FloatRange)}
            if shape_parameters is None
            else set()
        )
        """The float ranges that were not yet tested for an effect on memory."""
        self._known: list[_TracedConfig] = []
        self._correction = 0
        """The number of bytes by which estimates were too low. The correction is a constant number of bytes, because
        memory that is not traced, such as the memory of an evaluation, does not grow with the estimate.
        """
        self._queue: queue.PriorityQueue[tuple[int, int, Callable[[], None]]] = queue.PriorityQueue()
        self._order = itertools.count()
        self._unseen: set[Future[Admission]] = set()
        self._closed = False
        self._worker = threading.Thread(target=self._work, name="legroom-estimates", daemon=True)
        self._worker.start()

    @property
    def has_unseen_configs(self) -> bool:
        return bool(self._unseen)

    def request(self, config: Config, checkpoint: str | None = None) -> "Future[Admission]":
        answer: Future[Admission] = Future()
        self._unseen.add(answer)
        estimate = partial(self._estimate_full_batch, config, checkpoint, answer)
        self._queue.put((FULL_BATCH, next(self._order), estimate))
        return answer

    def record_oom(self, config: Config, fit: Fit, needed: int) -> None:
        if not fit.predicted:  # there was no estimate
            return
        self._correction = max(self._correction, round(OOM_MARGIN * needed) - fit.predicted)
        self._memory_parameters, self._to_probe = set(self._space.names), set()

    def close(self) -> None:
        self._closed = True
        for tracer in self._tracers:
            tracer.kill()  # if a trace is running, it fails
        self._queue.put((-1, next(self._order), lambda: None))
        self._worker.join()
        for tracer in self._tracers:
            tracer.close()

    # ------------------------------------------------------------ the worker thread

    def _work(self) -> None:
        while not self._closed:
            _, _, work = self._queue.get()
            if not self._closed:
                work()

    def _estimate_full_batch(
        self, config: Config, checkpoint: str | None, answer: "Future[Admission]"
    ) -> None:
        answer.set_running_or_notify_cancel()
        began = time.perf_counter()
        with self._answering(answer):
            known = self._matching(config, checkpoint, self._memory_parameters)
            is_cached = known is not None
            if known is None:
                known = self._trace_new(config, checkpoint)
            finish = partial(self._finish, known, answer, is_cached, time.perf_counter() - began)
            full = known.traces[None]
            if all(self._fits_on(full[gpu.index], gpu, self._correction) for gpu in self._gpus):
                finish()
            else:
                self._queue.put((MICRO_BATCHES, next(self._order), finish))
        self._unseen.discard(answer)

    def _finish(
        self, known: _TracedConfig, answer: "Future[Admission]", is_cached: bool, seconds: float
    ) -> None:
        began = time.perf_counter()
        with self._answering(answer):
            admission = self._admission(known)
            seconds += time.perf_counter() - began
            answer.set_result(replace(admission, seconds=seconds, is_cached=is_cached))

    @contextlib.contextmanager
    def _answering(self, answer: "Future[Admission]") -> Iterator[None]:
        """Pass an error inside the block to the caller that waits for the admission, so that the caller does not wait
        forever.
        """
        try:
            yield
        except CannotEstimate as trouble:
            answer.set_result(self._unknown(str(trouble)))
        except Exception as error:
            answer.set_exception(error)

    def _trace_new(self, config: Config, checkpoint: str | None) -> _TracedConfig:
        known = _TracedConfig(config, checkpoint, {})
        self._trace(known, None)
        if self._matching(config, checkpoint, self._memory_parameters - self._to_probe) is not None:
            # Testing float ranges can now save traces.
            for name in sorted(self._to_probe):
                self._queue.put((RANGE_ENDS, next(self._order), partial(self._probe, name)))
            self._to_probe = set()
        self._known.append(known)
        return known

    def _trace(self, known: _TracedConfig, micro: int | None) -> dict[int, TraceResult]:
        if micro not in known.traces:
            results: dict[int, TraceResult] = {}
            for tracer in self._tracers:
                traced = tracer.trace(known.config, micro, known.checkpoint, urgent=micro is None)
                for index, gpu in enumerate(tracer.gpus):
                    results[gpu.index] = replace(traced, fits=(traced.fits[index],))
            known.traces[micro] = results
        return known.traces[micro]

    def _matching(self, config: Config, checkpoint: str | None, names: set[str]) -> _TracedConfig | None:
        """Return the traces of a configuration with the same values for all parameters in `names`. A trial that loads a
        checkpoint may need more memory, so it shares traces only with trials that also load a checkpoint.
        """
        for known in self._known:
            if (
                (known.checkpoint is None) == (checkpoint is None)
                and known.config.keys() == config.keys()
                and all(known.config[name] == config[name] for name in config if name in names)
            ):
                return known
        return None

    def _probe(self, name: str) -> None:
        """Test whether memory depends on a parameter, by tracing both ends of its range and comparing them with the
        first configuration.
        """
        first = self._known[0]
        domain = next(p.domain for p in self._space.parameters if p.name == name)
        if name not in first.config or not isinstance(domain, FloatRange):
            return
        with contextlib.suppress(CannotEstimate):
            for value in (domain.low, domain.high):
                for tracer in self._tracers:
                    traced = tracer.trace({**first.config, name: value}, None, first.checkpoint, urgent=False)
                    if traced.request_hash != first.traces[None][tracer.gpus[0].index].request_hash:
                        return
            self._memory_parameters.discard(name)

    # ------------------------------------------------------------ admissions from traces

    def _fits(self, known: _TracedConfig, batch_size: int | None, correction: int) -> dict[int, Fit]:
        full = self._trace(known, None)
        fits: dict[int, Fit] = {}
        for gpu in self._gpus:
            traced = full[gpu.index]
            if self._fits_on(traced, gpu, correction):
                fits[gpu.index] = self._fit(traced, gpu, None, correction)
            elif traced.can_split and batch_size is not None and batch_size > traced.min_micro_batch:
                found = self._largest_micro_batch(known, gpu, batch_size, traced, correction)
                if found is not None:
                    fits[gpu.index] = replace(found, used_by_others=self._blocking_bytes(traced, gpu))
        return fits

    def _largest_micro_batch(
        self, known: _TracedConfig, gpu: TrialGpu, batch_size: int, full: TraceResult, correction: int
    ) -> Fit | None:
        """Return the largest micro-batch that fits, among the sizes that split the batch evenly."""
        sizes = sorted(
            {-(-batch_size // count) for count in range(2, batch_size // full.min_micro_batch + 1)}
            | {full.min_micro_batch}
        )
        tried = {len(sizes): full.safe}
        low, high = 0, len(sizes)
        first = self._trace(known, sizes[0])[gpu.index]
        tried[0] = first.safe
        if not self._fits_on(first, gpu, correction):
            return None
        best = self._fit(first, gpu, sizes[0], correction)
        for _ in range(MAX_TRACES):
            if high - low <= 1 or sizes[low] >= NEAR * [*sizes, batch_size][high]:
                break
            middle = _next_size(low, high, [*sizes, batch_size], tried, self._available(gpu) - correction)
            if middle is None:
                break
            traced = self._trace(known, sizes[middle])[gpu.index]
            tried[middle] = traced.safe
            if self._fits_on(traced, gpu, correction):
                low, best = middle, self._fit(traced, gpu, sizes[middle], correction)
            else:
                high = middle
        return best

    def _fits_on(self, traced: TraceResult, gpu: TrialGpu, correction: int) -> bool:
        if traced.safe + correction <= self._available(gpu):
            return True
        # The replay with the memory available at the start is more precise than the bound.
        return not correction and self._available(gpu) >= gpu.available and traced.fits[0]

    def _available(self, gpu: TrialGpu) -> int:
        return max(0, gpu.memory - self._other_processes.used(gpu) - gpu.context)

    def _fit(self, traced: TraceResult, gpu: TrialGpu, micro: int | None, correction: int) -> Fit:
        return Fit(
            predicted=gpu.context + traced.reserved,
            safe=gpu.context + min(self._available(gpu), traced.safe + correction),
            micro_batch=micro,
        )

    def _admission(self, known: _TracedConfig) -> Admission:
        batch_size = next(iter(known.traces[None].values())).batch_size
        if batch_size is None and isinstance(known.config.get("batch_size"), int):
            batch_size = known.config["batch_size"]
        correction = self._correction
        fits = self._fits(known, batch_size, correction)
        if not fits and correction:  # without the correction, it may fit with a GPU to itself
            own = self._fits(known, batch_size, 0)
            fits = {
                gpu.index: replace(own[gpu.index], safe=gpu.context + self._available(gpu))
                for gpu in self._gpus
                if gpu.index in own
            }
        if fits:
            split = [fit for fit in fits.values() if fit.micro_batch is not None]
            verdict = AdmissionVerdict.SPLIT if len(split) == len(fits) else AdmissionVerdict.FITS
            return Admission(verdict=verdict, fits=fits, batch_size=batch_size)
        return self._never_fits(known, batch_size)

    def _never_fits(self, known: _TracedConfig, batch_size: int | None) -> Admission:
        largest = max(self._gpus, key=self._available)
        full = known.traces[None][largest.index]
        smallest = min((m for m in known.traces if m is not None), default=None)
        least = known.traces[smallest][largest.index] if smallest is not None else full
        needed = least.safe
        if smallest is not None:
            what = f"Needs {format_size(needed)} even in micro-batches of {smallest}"
        elif full.can_split:
            what = f"Needs {format_size(needed)}"
        else:
            what = f"Needs {format_size(needed)} and cannot be split, because the function does not use `trial.guard`"
        used_by_others = max(self._blocking_bytes(least, gpu) for gpu in self._gpus)
        others = f" ({format_size(used_by_others)} is used by other programs)" if used_by_others else ""
        return Admission(
            verdict=AdmissionVerdict.NEVER,
            fits={},
            reason=f"{what}; {format_size(self._available(largest))} is available{others}",
            batch_size=batch_size,
            shortage=max(1e-6, needed / max(1, self._available(largest)) - 1.0),
            needed=needed + largest.context,
        )

    def _blocking_bytes(self, traced: TraceResult, gpu: TrialGpu) -> int:
        """Return the bytes that other programs use on a GPU if the configuration would fit without these programs,
        otherwise 0.
        """
        would_fit = traced.safe <= gpu.memory - gpu.context
        return self._other_processes.used(gpu) if would_fit and not self._fits_on(traced, gpu, 0) else 0

    def _unknown(self, reason: str) -> Admission:
        fits = {gpu.index: Fit(predicted=0, safe=gpu.memory) for gpu in self._gpus}
        return Admission(
            verdict=AdmissionVerdict.UNKNOWN,
            fits=fits,
            reason=f"Memory could not be estimated ({reason}). The trial runs alone on a GPU.",
        )


def _by_kind(gpus: Sequence[TrialGpu]) -> Iterator[list[TrialGpu]]:
    """Yield groups of GPUs that can share a trace: GPUs of the same model, or virtual GPUs with the same compute
    capability.
    """
    kinds: dict[tuple[bool, object], list[TrialGpu]] = {}
    for gpu in gpus:
        kind = gpu.spec.capability if gpu.virtual else gpu.spec.name
        kinds.setdefault((gpu.virtual, kind), []).append(gpu)
    yield from kinds.values()


def _next_size(low: int, high: int, sizes: Sequence[int], tried: dict[int, int], room: float) -> int | None:
    """Return the index of the size to try next, by linear interpolation between `low` and `high`. If no size between
    `low` and `high` is expected to fit, return None. If only the smallest size is known to fit, return the index of
    the next larger size instead.
    """
    small, large = sizes[low], sizes[high]
    slope = (tried[high] - tried[low]) / max(1, large - small)
    wanted = small + (room - tried[low]) / slope if slope > 0 else (small + large) / 2
    inside = range(low + 1, high)
    below = [index for index in inside if sizes[index] <= wanted]
    if below:
        return below[-1]
    return inside[0] if low == 0 else None
