"""Which trial goes to which GPU: several share one as long as their safe bounds fit side by side.

Every trial in a process of its own, each with CUDA's context, so what is added up is the bound on the device. Of those that are
ready and have room now, the one goes first that the plan has first (the largest, while nothing is known of how long trials take), to the GPU
where it leaves least free; one that was passed over too often gets the next GPU that empties. A trial is put where its batch need not be split,
if there is such a place at all among the free ones.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from legroom.tuning.memory.admission import Admission, Fit, Place, Verdict
from legroom.tuning.memory.runtime_model import Futures
from legroom.tuning.memory.start_order import Demand, Room, Taken, best_order

PATIENCE = 12
"""How often others may go before a trial that waits for room, for each that can run at once. Holding a GPU empty for it costs more than
the wait (see bench.tuning.packing)."""

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


def _nothing() -> Futures | None:
    return None


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
        foretell: Callable[[], Futures | None] = _nothing,
    ) -> Placement | None:
        """The next of the `waiting` trials that can start now. Its room is taken.

        `alone`: those that are to have a GPU to themselves, and how many bytes it must have. `foretell`: how long trials will probably take, asked only
        where there is a choice.
        """
        able = self._able(waiting, alone or {})
        if not able:
            return None
        number = min(able)
        if len(able) > 1:
            order = self._order(waiting, alone or {}, foretell())
            number = next(number for number in order if number in able)
        self._take(able[number], waiting)
        return able[number]

    def has_room(self, waiting: Mapping[int, Admission], *, alone: Mapping[int, int] | None = None) -> bool:
        """Whether any of these can start now."""
        return bool(self._able(waiting, alone or {}))

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

    def _able(self, waiting: Mapping[int, Admission], alone: Mapping[int, int]) -> dict[int, Placement]:
        """Those that can start now, and where."""
        if len(self._taken) >= self.slots:
            return {}
        if not self.places:
            return {number: Placement(number=number) for number in sorted(waiting)[:1]}
        held = self._held_for(waiting)
        able = {}
        for number in waiting if held is None else [held]:  # nobody goes before it any more
            chosen = self._room_for(waiting[number], self._whole(number, waiting[number], alone))
            if chosen is not None:
                places, fits = zip(*chosen, strict=True)
                is_alone = all(fit.safe >= self._capacity(place) for place, fit in chosen)
                able[number] = Placement(number=number, places=places, fits=fits, is_alone=is_alone)
        return able

    def _order(
        self, waiting: Mapping[int, Admission], alone: Mapping[int, int], futures: Futures | None
    ) -> list[int]:
        """Who should start first: as planned, or the largest where nothing is known of lengths, since it finds room only while there is much."""
        if futures is None:
            return sorted(waiting, key=lambda number: (-waiting[number].size, number))
        demands = {
            number: Demand(self._sizes(admission, self._whole(number, admission, alone)), futures.waiting[number])
            for number, admission in waiting.items()
        }  # fmt: skip
        position = {place.index: position for position, place in enumerate(self.places)}
        running = [
            Taken([(position[index], size) for index, size in taken], futures.running[number])
            for number, taken in self._taken.items()
        ]
        free = [self.free(place) for place in self.places]
        return best_order(demands, Room(free, running, self.slots, self.ranks))

    def _sizes(self, admission: Admission, whole: int | None) -> list[int | None]:
        """What a trial takes of each place; None where it cannot run."""
        return [self._size_on(place, admission, whole) for place in self.places]

    def _size_on(self, place: Place, admission: Admission, whole: int | None) -> int | None:
        fit = admission.fits.get(place.index)
        if fit is None or place.memory < (whole or 0):
            return None
        return fit.safe if whole is None else self._capacity(place)

    def _whole(self, number: int, admission: Admission, alone: Mapping[int, int]) -> int | None:
        """Bytes that a GPU must have which the trial is to have to itself; None where it may share one."""
        if number in alone:
            return alone[number]
        return 0 if admission.verdict is Verdict.UNKNOWN or self._ranks_need_whole_gpus else None

    def _capacity(self, place: Place) -> int:
        return place.memory - self.held(place)

    def _room_for(self, admission: Admission, whole: int | None) -> list[tuple[Place, Fit]] | None:
        """One place for each rank, all with the same micro-batch; None where there is not enough room now.

        `whole`: it gets whole GPUs, of so many bytes at least.
        """
        options: list[_Option] = []
        for place in self.places:
            size, free = self._size_on(place, admission, whole), self.free(place)
            if size is not None and place.context < size <= free:
                fit = admission.fits[place.index]
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


def _allowance(place: Place) -> int:
    """What a trial gets beyond its bound where there is room: on a real GPU a kernel may take a segment that no rule knows."""
    return 0 if place.virtual else place.memory // ALLOWANCE
