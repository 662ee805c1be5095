"""Assigns trials to GPUs. Trials share a GPU if the sum of the upper bounds of their memory fits.

Every trial has its own process, so its bound includes a CUDA context. The next trial is the first trial in the planned
start order that fits into the free memory. Until runtimes are known, the largest trial starts first. A trial starts on
the GPU where it leaves the least memory free, preferably on a GPU where its batch is not split. If other trials have
overtaken a trial too often, it gets the next free GPU.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from legroom.tuning.memory.admission import Admission, AdmissionVerdict, Fit, TrialGpu
from legroom.tuning.memory.runtime_model import RuntimeSamples
from legroom.tuning.memory.start_order import Allocation, Capacity, Demand, best_order

MAX_OVERTAKEN = 12
"""The maximum number of trials that overtake a waiting trial, per trial that can run in parallel. With a lower limit,
GPUs stay empty more often until the waiting trial fits (see bench.tuning.packing).
"""

MARGIN = 50
"""A trial gets 1/50 of the memory of a real GPU in addition to its bound, if this memory is free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPlacement:
    """The GPUs of a trial, one per rank."""

    number: int
    gpus: tuple[TrialGpu, ...] = ()
    fits: tuple[Fit, ...] = ()
    """The memory and micro-batch size of the trial on each of its GPUs. Without a GPU, the tuple is empty."""
    is_alone: bool = False

    @property
    def fit(self) -> Fit | None:
        return self.fits[0] if self.fits else None


class _GpuOption(NamedTuple):
    """A GPU with enough free memory for a trial. Options are compared as tuples, and the smallest tuple is the best
    option."""

    is_split: bool
    left: int
    number: int
    gpu: TrialGpu
    fit: Fit


def _none_used(gpu: TrialGpu) -> int:
    return 0


def _no_prediction() -> RuntimeSamples | None:
    return None


@dataclass(slots=True)
class Packer:
    """Tracks the memory that is reserved for trials. `slots` is the maximum number of trials that run at the same
    time."""

    gpus: Sequence[TrialGpu]
    slots: int
    ranks: int = 1
    used_by_others: Callable[[TrialGpu], int] = _none_used
    _allocated: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    _times_overtaken: dict[int, int] = field(default_factory=dict)

    def place(
        self,
        waiting: Mapping[int, Admission],
        *,
        alone: Mapping[int, int] | None = None,
        predict_runtimes: Callable[[], RuntimeSamples | None] = _no_prediction,
    ) -> TrialPlacement | None:
        """Choose one of the `waiting` trials that can start now, reserve its memory, and return its placement.

        `alone` maps each trial that needs a GPU to itself to the minimum memory of this GPU in bytes.
        `predict_runtimes` is called only if several trials can start.
        """
        startable = self._startable(waiting, alone or {})
        if not startable:
            return None
        number = min(startable)
        if len(startable) > 1:
            order = self._start_order(waiting, alone or {}, predict_runtimes())
            number = next(number for number in order if number in startable)
        self._reserve(startable[number], waiting)
        return startable[number]

    def has_room(self, waiting: Mapping[int, Admission], *, alone: Mapping[int, int] | None = None) -> bool:
        return bool(self._startable(waiting, alone or {}))

    def release(self, number: int) -> None:
        self._allocated.pop(number, None)

    def free(self, gpu: TrialGpu) -> int:
        return self._capacity(gpu) - self.reserved.get(gpu.index, 0)

    @property
    def reserved(self) -> dict[int, int]:
        sums: dict[int, int] = {}
        for allocations in self._allocated.values():
            for index, size in allocations:
                sums[index] = sums.get(index, 0) + size
        return sums

    # ------------------------------------------------------------ choosing trial and GPU

    def _startable(
        self, waiting: Mapping[int, Admission], alone: Mapping[int, int]
    ) -> dict[int, TrialPlacement]:
        if len(self._allocated) >= self.slots:
            return {}
        if not self.gpus:
            return {number: TrialPlacement(number=number) for number in sorted(waiting)[:1]}
        overdue = self._overdue(waiting)
        startable = {}
        for number in waiting if overdue is None else [overdue]:  # other trials no longer start before it
            chosen = self._find_gpus(waiting[number], self._exclusive_size(number, waiting[number], alone))
            if chosen is not None:
                gpus, fits = zip(*chosen, strict=True)
                is_alone = all(fit.safe >= self._capacity(gpu) for gpu, fit in chosen)
                startable[number] = TrialPlacement(number=number, gpus=gpus, fits=fits, is_alone=is_alone)
        return startable

    def _start_order(
        self, waiting: Mapping[int, Admission], alone: Mapping[int, int], runtimes: RuntimeSamples | None
    ) -> list[int]:
        """Return the order in which trials should start. Until runtimes are known, the largest trial comes first,
        because it needs the most free memory.
        """
        if runtimes is None:
            return sorted(waiting, key=lambda number: (-waiting[number].size, number))
        demands = {
            number: Demand(self._sizes(admission, self._exclusive_size(number, admission, alone)), runtimes.waiting[number])
            for number, admission in waiting.items()
        }  # fmt: skip
        position = {gpu.index: position for position, gpu in enumerate(self.gpus)}
        running = [
            Allocation([(position[index], size) for index, size in allocations], runtimes.running[number])
            for number, allocations in self._allocated.items()
        ]
        free = [self.free(gpu) for gpu in self.gpus]
        return best_order(demands, Capacity(free, running, self.slots, self.ranks))

    def _sizes(self, admission: Admission, exclusive: int | None) -> list[int | None]:
        return [self._size_on(gpu, admission, exclusive) for gpu in self.gpus]

    def _size_on(self, gpu: TrialGpu, admission: Admission, exclusive: int | None) -> int | None:
        fit = admission.fits.get(gpu.index)
        if fit is None or gpu.memory < (exclusive or 0):
            return None
        return fit.safe if exclusive is None else self._capacity(gpu)

    def _exclusive_size(self, number: int, admission: Admission, alone: Mapping[int, int]) -> int | None:
        if number in alone:
            return alone[number]
        return 0 if admission.verdict is AdmissionVerdict.UNKNOWN or self._ranks_need_whole_gpus else None

    def _capacity(self, gpu: TrialGpu) -> int:
        return gpu.memory - self.used_by_others(gpu)

    def _find_gpus(self, admission: Admission, exclusive: int | None) -> list[tuple[TrialGpu, Fit]] | None:
        """Return one GPU per rank, all with the same micro-batch size, or None if there is not enough free memory.

        If `exclusive` is set, the trial shares its GPUs with no other trial, and each GPU has at least `exclusive`
        bytes of memory.
        """
        options: list[_GpuOption] = []
        for gpu in self.gpus:
            size, free = self._size_on(gpu, admission, exclusive), self.free(gpu)
            if size is not None and gpu.context < size <= free:
                fit = admission.fits[gpu.index]
                reserved = replace(fit, safe=min(free, size + _margin(gpu)))
                options.append(_GpuOption(fit.micro_batch is not None, free - size, gpu.index, gpu, reserved))
        options.sort(key=lambda option: option[:3])
        groups = [group[: self.ranks] for group in self._by_machine(options) if len(group) >= self.ranks]
        if not groups:
            return None
        best = min(groups, key=lambda group: (any(o.is_split for o in group), sum(o.left for o in group)))
        sizes = [option.fit.micro_batch for option in best if option.fit.micro_batch is not None]
        return [(option.gpu, replace(option.fit, micro_batch=min(sizes, default=None))) for option in best]

    def _by_machine(self, options: list[_GpuOption]) -> list[list[_GpuOption]]:
        """Group the options by machine. The ranks of a trial run on one machine, unless no machine has enough GPUs."""
        counts = Counter(gpu.machine for gpu in self.gpus)
        if max(counts.values()) < self.ranks:
            return [options]
        return [[option for option in options if option.gpu.machine == machine] for machine in counts]

    @property
    def _ranks_need_whole_gpus(self) -> bool:
        """True if each rank must have a whole GPU. On a cluster, Ray may place two ranks that request fractions of a
        GPU on the same GPU.
        """
        return self.ranks > 1 and any(gpu.machine for gpu in self.gpus)

    def _reserve(self, placement: TrialPlacement, waiting: Mapping[int, Admission]) -> None:
        number, pairs = placement.number, zip(placement.gpus, placement.fits, strict=True)
        self._allocated[number] = [(gpu.index, fit.safe) for gpu, fit in pairs]
        self._times_overtaken.pop(number, None)
        for other in waiting:
            if other < number:
                self._times_overtaken[other] = self._times_overtaken.get(other, 0) + 1

    def _overdue(self, waiting: Mapping[int, Admission]) -> int | None:
        late = [
            number for number in waiting if self._times_overtaken.get(number, 0) >= MAX_OVERTAKEN * self.slots
        ]
        return min(late, default=None)


def _margin(gpu: TrialGpu) -> int:
    """Return the bytes that are reserved in addition to the bound. On a real GPU, a kernel may allocate memory that the
    estimate does not include.
    """
    return 0 if gpu.virtual else gpu.memory // MARGIN
