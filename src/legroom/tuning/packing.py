"""Which trial goes to which GPU: several share one as long as their safe bounds fit side by side.

Every trial in a process of its own, each with CUDA's context, so what is added up is the bound on the device. Of those that are
ready and have room now, the one goes first that takes most, memory and time as far as that can be foretold, to the GPU where it leaves
least free; one that was passed over too often gets the next GPU that empties. A trial is put where its batch need not be split, if there is
such a place at all among the free ones.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from legroom.tuning.admission import Admission, Fit, Place, Verdict

PATIENCE = 12
"""How often others may go before a trial that waits for room, for each that can run at once. Holding a GPU empty for it costs more than
the wait (see bench.packing)."""

ALLOWANCE = 50
"""A trial gets this part of a real GPU (a fiftieth) beyond its bound, where nobody else has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a trial goes: one place for each of its ranks."""

    number: int
    places: tuple[Place, ...] = ()
    fits: tuple[Fit, ...] = ()
    """How it runs on each of them; none on the host."""
    is_alone: bool = False
    """No other trial shares its GPUs."""

    @property
    def fit(self) -> Fit | None:
        """How rank 0 runs."""
        return self.fits[0] if self.fits else None


class _Option(NamedTuple):
    """A place with room, the better the smaller."""

    is_split: bool
    left: int
    """Bytes that stay free."""
    number: int
    place: Place
    fit: Fit


def _nobody(place: Place) -> int:
    return 0


@dataclass(slots=True)
class Packer:
    """Keeps account of what is taken. `slots`: trials at once at most."""

    places: Sequence[Place]
    slots: int
    ranks: int = 1
    held: Callable[[Place], int] = _nobody
    """Bytes of a place that other programs have."""
    _taken: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """Trial → (place's index, bytes) of each rank."""
    _passed: dict[int, int] = field(default_factory=dict)

    def place(
        self,
        waiting: Mapping[int, Admission],
        *,
        alone: Mapping[int, int] | None = None,
        seconds: Mapping[int, float] | None = None,
    ) -> Placement | None:
        """The next of the `waiting` trials that can start now. Its room is taken.

        `alone`: those that are to have a GPU to themselves, and how many bytes it must have. `seconds`: how long each will probably take, where that is known.
        """
        found = self.next(waiting, alone=alone, seconds=seconds)
        if found is not None:
            self._take(found, waiting)
        return found

    def next(
        self,
        waiting: Mapping[int, Admission],
        *,
        alone: Mapping[int, int] | None = None,
        seconds: Mapping[int, float] | None = None,
    ) -> Placement | None:
        """Who would be placed; nothing is taken."""
        if len(self._taken) >= self.slots or not waiting:
            return None
        if not self.places:
            return Placement(number=min(waiting))
        held = self._held_for(waiting)
        weights = self._weights(waiting, seconds or {})
        for number in sorted(waiting, key=lambda one: (one != held, -weights[one], one)):
            least = (alone or {}).get(number)
            if least is None and (waiting[number].verdict is Verdict.UNKNOWN or self._ranks_need_whole_gpus):
                least = 0
            chosen = self._room_for(waiting[number], least)
            if chosen is not None:
                places, fits = zip(*chosen, strict=True)
                is_alone = all(fit.safe >= self._capacity(place) for place, fit in chosen)
                return Placement(number=number, places=places, fits=fits, is_alone=is_alone)
            if number == held:
                return None  # nobody goes before it any more
        return None

    def release(self, number: int) -> None:
        """A trial's process is gone."""
        self._taken.pop(number, None)

    def free(self, place: Place) -> int:
        """Bytes that neither a trial was given nor another program has."""
        return self._capacity(place) - self.given.get(place.index, 0)

    @property
    def given(self) -> dict[int, int]:
        """Bytes that running trials were given, by place's index."""
        sums: dict[int, int] = {}
        for taken in self._taken.values():
            for index, size in taken:
                sums[index] = sums.get(index, 0) + size
        return sums

    # ------------------------------------------------------------

    def _weights(self, waiting: Mapping[int, Admission], seconds: Mapping[int, float]) -> dict[int, float]:
        """What speaks for starting a trial early: the share of a GPU that it takes, and how long it takes against the longest of those that wait.

        A large one finds room only while there is much of it, a long one must not begin last.
        """
        largest, longest = max(place.memory for place in self.places), max(seconds.values(), default=1.0)
        return {
            number: _size(admission) / largest + seconds.get(number, 0.0) / longest
            for number, admission in waiting.items()
        }

    def _capacity(self, place: Place) -> int:
        return place.memory - self.held(place)

    def _room_for(self, admission: Admission, whole: int | None) -> list[tuple[Place, Fit]] | None:
        """One place for each rank, all with the same micro-batch; None where there is not enough room now.

        `whole`: it gets whole GPUs, of so many bytes at least.
        """
        options: list[_Option] = []
        for place in self.places:
            fit = admission.fits.get(place.index)
            if fit is None or place.memory < (whole or 0):
                continue
            size = fit.safe if whole is None else self._capacity(place)
            free = self.free(place)
            if place.context < size <= free:
                given = replace(fit, safe=min(free, size + _allowance(place)))
                options.append(_Option(fit.micro_batch is not None, free - size, place.index, place, given))
        options.sort(key=lambda option: option[:3])
        groups = [group[: self.ranks] for group in self._by_machine(options) if len(group) >= self.ranks]
        if not groups:
            return None
        best = min(groups, key=lambda group: (any(o.is_split for o in group), sum(o.left for o in group)))
        sizes = [option.fit.micro_batch for option in best if option.fit.micro_batch is not None]
        return [(option.place, replace(option.fit, micro_batch=min(sizes, default=None))) for option in best]

    def _by_machine(self, options: list[_Option]) -> list[list[_Option]]:
        """The ranks of a trial are on one machine, unless none has as many GPUs."""
        counts = Counter(place.machine for place in self.places)
        if max(counts.values()) < self.ranks:
            return [options]
        return [[option for option in options if option.place.machine == machine] for machine in counts]

    @property
    def _ranks_need_whole_gpus(self) -> bool:
        """On a cluster a rank has its GPU to itself: Ray may put two shares on one."""
        return self.ranks > 1 and any(place.machine for place in self.places)

    def _take(self, placement: Placement, waiting: Mapping[int, Admission]) -> None:
        number, pairs = placement.number, zip(placement.places, placement.fits, strict=True)
        self._taken[number] = [(place.index, fit.safe) for place, fit in pairs]
        self._passed.pop(number, None)
        for other in waiting:
            if other < number:
                self._passed[other] = self._passed.get(other, 0) + 1

    def _held_for(self, waiting: Mapping[int, Admission]) -> int | None:
        late = [number for number in waiting if self._passed.get(number, 0) >= PATIENCE * self.slots]
        return min(late, default=None)


def _size(admission: Admission) -> int:
    return min((fit.safe for fit in admission.fits.values()), default=0)


def _allowance(place: Place) -> int:
    """What a trial gets beyond its bound where there is room: on a real GPU a kernel may take a segment that no rule knows."""
    return 0 if place.virtual else place.memory // ALLOWANCE
