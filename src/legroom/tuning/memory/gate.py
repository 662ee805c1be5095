"""Says of each configuration whether it fits, before it starts: in the background, once for all that ask the same of memory.

A worker thread traces one configuration after the other. The batch whole, first; where that does not fit, its smallest piece;
where that fits, the largest piece that does, by what the two foretell. Those that wait for a look at their whole batch go before pieces: what fits whole is answered soonest. Two configurations that differ only in parameters
that memory does not depend on (a learning rate) share an answer. Which these are is found out, not guessed: a range of
floats is traced at both of its ends, and if that asks for the very same memory as the first configuration did, it is left
out of the comparison. That is done once two configurations differ in such ranges alone, since before it would spare nothing. Whole numbers and choices always count, unless the user names the parameters that do.

Pieces and ends of ranges are not in a hurry: they are traced with what processor time the trials leave over.

A trial that met a full GPU in spite of its answer makes all later answers larger, by what was lacking, and ends the sharing. That may split a batch or take a neighbour away; it
rejects nothing: what fits by its estimate runs, with a GPU to itself.
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

from legroom.tuning.memory.admission import NO_GPU, Admission, Fit, Place, Verdict
from legroom.tuning.memory.other_processes import Neighbours
from legroom.tuning.memory.tracer import CannotEstimate, Traced, Tracer
from legroom.tuning.space.domains import FloatRange
from legroom.tuning.space.space import Config, Space
from legroom.tuning.trial.function import TrainFunction
from legroom.units import format_size

MOST_TRACES = 4
"""For the largest micro-batch on one GPU: after so many the largest that was found is good enough."""
NEAR = 0.75
"""Of the smallest micro-batch that does not fit: one that is as large as this is large enough."""
WHOLE, PIECES, ENDS = range(3)
"""What is traced first: whole batches, then pieces of those that do not fit, then the ends of ranges."""
TOO_LOW = 1.05
"""What a trial took when it met a full GPU is as much as it was given: it wanted more than that."""


class OpenGate:
    """Where trials run on the host alone: everything may pass."""

    is_looking = False

    def ask(self, config: Config) -> "Future[Admission]":
        answer: Future[Admission] = Future()
        answer.set_result(NO_GPU)
        return answer

    def ran_out(self, config: Config, fit: Fit, needed: int) -> None:
        """There is no estimate to correct."""

    def close(self) -> None:
        """There is nothing to end."""


@dataclass(slots=True)
class _Known:
    """What was traced of one configuration: micro-batch (None: whole) → figures of each kind of GPU."""

    config: Config
    traces: dict[int | None, dict[int, Traced]]
    """By place's index."""


class MemoryGate:
    """The gate in front of one function."""

    def __init__(
        self,
        function: TrainFunction,
        places: Sequence[Place],
        space: Space,
        *,
        ranks: int = 1,
        shape_parameters: frozenset[str] | None = None,
        neighbours: Neighbours | None = None,
    ) -> None:
        self._places, self._space = list(places), space
        self._neighbours = neighbours or Neighbours(places)
        self._tracers = [Tracer(function, list(alike), ranks) for alike in _kinds(places)]
        self._counts = set(space.names) if shape_parameters is None else set(shape_parameters)
        """Parameters in which two configurations must agree to share an answer."""
        self._to_probe = (
            {p.name for p in space.parameters if isinstance(p.domain, FloatRange)}
            if shape_parameters is None
            else set()
        )
        """Ranges of which it is not known whether memory depends on them."""
        self._known: list[_Known] = []
        self._lacking = 0
        """Bytes by which estimates have been too low. A sum: what is not in the traced steps (an evaluation) is as large whatever they take."""
        self._jobs: queue.PriorityQueue[tuple[int, int, Callable[[], None]]] = queue.PriorityQueue()
        self._order = itertools.count()
        self._unseen: set[Future[Admission]] = set()
        self._closed = False
        self._worker = threading.Thread(target=self._work, name="legroom-estimates", daemon=True)
        self._worker.start()

    @property
    def is_looking(self) -> bool:
        return bool(self._unseen)

    def ask(self, config: Config) -> "Future[Admission]":
        answer: Future[Admission] = Future()
        self._unseen.add(answer)
        self._jobs.put((WHOLE, next(self._order), partial(self._look, config, answer)))
        return answer

    def ran_out(self, config: Config, fit: Fit, needed: int) -> None:
        if not fit.predicted:  # nothing had been foretold
            return
        self._lacking = max(self._lacking, round(TOO_LOW * needed) - fit.predicted)
        self._counts, self._to_probe = set(self._space.names), set()

    def close(self) -> None:
        self._closed = True
        for tracer in self._tracers:
            tracer.kill()  # whoever waits for it learns that it is gone
        self._jobs.put((-1, next(self._order), lambda: None))
        self._worker.join()
        for tracer in self._tracers:
            tracer.close()

    # ------------------------------------------------------------ the worker

    def _work(self) -> None:
        while not self._closed:
            _, _, job = self._jobs.get()
            if not self._closed:
                job()

    def _look(self, config: Config, answer: "Future[Admission]") -> None:
        """At the whole batch; pieces, where it needs them, come later."""
        answer.set_running_or_notify_cancel()
        began = time.perf_counter()
        with self._answering(answer):
            known = self._alike(config, self._counts)
            is_cached = known is not None
            if known is None:
                known = self._known_from_now_on(config)
            finish = partial(self._finish, known, answer, is_cached, time.perf_counter() - began)
            whole = known.traces[None]
            if all(self._is_in(whole[place.index], place, self._lacking) for place in self._places):
                finish()
            else:
                self._jobs.put((PIECES, next(self._order), finish))
        self._unseen.discard(answer)

    def _finish(self, known: _Known, answer: "Future[Admission]", is_cached: bool, seconds: float) -> None:
        began = time.perf_counter()
        with self._answering(answer):
            admission = self._judged(known)
            seconds += time.perf_counter() - began
            answer.set_result(replace(admission, seconds=seconds, is_cached=is_cached))

    @contextlib.contextmanager
    def _answering(self, answer: "Future[Admission]") -> Iterator[None]:
        """Whoever waits for an answer must not wait for ever."""
        try:
            yield
        except CannotEstimate as trouble:
            answer.set_result(self._unknown(str(trouble)))
        except Exception as error:
            answer.set_exception(error)

    def _known_from_now_on(self, config: Config) -> _Known:
        known = _Known(config, {})
        self._trace(known, None)
        if self._alike(config, self._counts - self._to_probe) is not None:
            # Such a trace may be spared from now on.
            for name in sorted(self._to_probe):
                self._jobs.put((ENDS, next(self._order), partial(self._probe, name)))
            self._to_probe = set()
        self._known.append(known)
        return known

    def _trace(self, known: _Known, micro: int | None) -> dict[int, Traced]:
        if micro not in known.traces:
            told: dict[int, Traced] = {}
            for tracer in self._tracers:
                traced = tracer.trace(known.config, micro, in_hurry=micro is None)
                for index, place in enumerate(tracer.places):
                    told[place.index] = replace(traced, fits=(traced.fits[index],))
            known.traces[micro] = told
        return known.traces[micro]

    def _alike(self, config: Config, counts: set[str]) -> _Known | None:
        """What was traced of a configuration that agrees with this one in all that `counts`."""
        for known in self._known:
            if known.config.keys() == config.keys() and all(
                known.config[name] == config[name] for name in config if name in counts
            ):
                return known
        return None

    def _probe(self, name: str) -> None:
        """Does memory depend on this parameter? Not if both of its ends ask for what the first configuration asked for."""
        first = self._known[0]
        domain = next(p.domain for p in self._space.parameters if p.name == name)
        if name not in first.config or not isinstance(domain, FloatRange):
            return
        with contextlib.suppress(CannotEstimate):
            for value in (domain.low, domain.high):
                for tracer in self._tracers:
                    traced = tracer.trace({**first.config, name: value}, None, in_hurry=False)
                    if traced.asked_for != first.traces[None][tracer.places[0].index].asked_for:
                        return
            self._counts.discard(name)

    # ------------------------------------------------------------ figures into answers

    def _fits(self, known: _Known, rows: int | None, lacking: int) -> dict[int, Fit]:
        """How it runs on each GPU where it does. `lacking`: bytes that it may take beyond its estimate."""
        whole = self._trace(known, None)
        fits: dict[int, Fit] = {}
        for place in self._places:
            traced = whole[place.index]
            if self._is_in(traced, place, lacking):
                fits[place.index] = self._fit(traced, place, None, lacking)
            elif traced.splits and rows is not None and rows > traced.fewest:
                found = self._largest_piece(known, place, rows, traced, lacking)
                if found is not None:
                    fits[place.index] = replace(found, held=self._in_the_way(traced, place))
        return fits

    def _largest_piece(
        self, known: _Known, place: Place, rows: int, whole: Traced, lacking: int
    ) -> Fit | None:
        """The largest micro-batch that fits, of those that cut the batch evenly."""
        sizes = sorted({-(-rows // pieces) for pieces in range(2, rows // whole.fewest + 1)} | {whole.fewest})
        tried = {len(sizes): whole.safe}
        low, high = 0, len(sizes)
        first = self._trace(known, sizes[0])[place.index]
        tried[0] = first.safe
        if not self._is_in(first, place, lacking):
            return None
        best = self._fit(first, place, sizes[0], lacking)
        for _ in range(MOST_TRACES):
            if high - low <= 1 or sizes[low] >= NEAR * [*sizes, rows][high]:
                break
            middle = _between(low, high, [*sizes, rows], tried, self._room(place) - lacking)
            if middle is None:
                break
            traced = self._trace(known, sizes[middle])[place.index]
            tried[middle] = traced.safe
            if self._is_in(traced, place, lacking):
                low, best = middle, self._fit(traced, place, sizes[middle], lacking)
            else:
                high = middle
        return best

    def _is_in(self, traced: Traced, place: Place, lacking: int) -> bool:
        if traced.safe + lacking <= self._room(place):
            return True
        # The replay with the room that there was at the beginning knows more than the bound does.
        return not lacking and self._room(place) >= place.room and traced.fits[0]

    def _room(self, place: Place) -> int:
        """Bytes for PyTorch beside what other programs have now."""
        return max(0, place.memory - self._neighbours.held(place) - place.context)

    def _fit(self, traced: Traced, place: Place, micro: int | None, lacking: int) -> Fit:
        return Fit(
            predicted=place.context + traced.reserved,
            safe=place.context + min(self._room(place), traced.safe + lacking),
            micro_batch=micro,
        )

    def _judged(self, known: _Known) -> Admission:
        rows = next(iter(known.traces[None].values())).rows
        if rows is None and isinstance(known.config.get("batch_size"), int):
            rows = known.config["batch_size"]
        lacking = self._lacking
        fits = self._fits(known, rows, lacking)
        if not fits and lacking:  # it fits by its own estimate, or not at all
            own = self._fits(known, rows, 0)
            fits = {
                place.index: replace(own[place.index], safe=place.context + self._room(place))
                for place in self._places
                if place.index in own
            }
        if fits:
            split = [fit for fit in fits.values() if fit.micro_batch is not None]
            verdict = Verdict.SPLIT if len(split) == len(fits) else Verdict.FITS
            return Admission(verdict=verdict, fits=fits, batch_size=rows)
        return self._never(known, rows)

    def _never(self, known: _Known, rows: int | None) -> Admission:
        largest = max(self._places, key=self._room)
        whole = known.traces[None][largest.index]
        smallest = min((m for m in known.traces if m is not None), default=None)
        least = known.traces[smallest][largest.index] if smallest is not None else whole
        needed = least.safe
        if smallest is not None:
            what = f"even in micro-batches of {smallest} it needs"
        elif whole.splits:
            what = "it needs"
        else:
            what = "it has no trial.guard, so its batch cannot be split, and it needs"
        held = max(self._in_the_way(least, place) for place in self._places)
        others = f" beside the {format_size(held)} that other programs hold" if held else ""
        return Admission(
            verdict=Verdict.NEVER,
            fits={},
            why=f"{what} {format_size(needed)}, and there are {format_size(self._room(largest))}{others}",
            batch_size=rows,
            shortage=max(1e-6, needed / max(1, self._room(largest)) - 1.0),
            needed=needed + largest.context,
        )

    def _in_the_way(self, traced: Traced, place: Place) -> int:
        """What other programs hold of a GPU, if this would fit there without them; else 0."""
        would_fit = traced.safe <= place.memory - place.context
        return self._neighbours.held(place) if would_fit and not self._is_in(traced, place, 0) else 0

    def _unknown(self, why: str) -> Admission:
        fits = {place.index: Fit(predicted=0, safe=place.memory) for place in self._places}
        return Admission(
            verdict=Verdict.UNKNOWN,
            fits=fits,
            why=f"memory could not be estimated ({why}): such trials run alone on a GPU",
        )


def _kinds(places: Sequence[Place]) -> Iterator[list[Place]]:
    """Places for which one trace is enough: the same kernels, or virtual ones of one capability, whatever their size."""
    kinds: dict[tuple[bool, object], list[Place]] = {}
    for place in places:
        kind = place.spec.capability if place.virtual else place.spec.name
        kinds.setdefault((place.virtual, kind), []).append(place)
    yield from kinds.values()


def _between(low: int, high: int, sizes: Sequence[int], tried: dict[int, int], room: float) -> int | None:
    """Which size to try next: where a line between the two nearest that were tried meets the room. None where that is below all of them, and something larger than the smallest was found."""
    small, large = sizes[low], sizes[high]
    slope = (tried[high] - tried[low]) / max(1, large - small)
    wanted = small + (room - tried[low]) / slope if slope > 0 else (small + large) / 2
    inside = range(low + 1, high)
    below = [index for index in inside if sizes[index] <= wanted]
    if below:
        return below[-1]
    return inside[0] if low == 0 else None
