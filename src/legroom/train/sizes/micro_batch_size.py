"""How many rows a micro-batch has: chosen from figures, grown back with patience, each choice with its reason.

A `Sizer` decides and never acts: it is told what ran, what failed and how fast it was, and answers with a size. It
has no clock and draws no random numbers, so ranks that tell it the same figures choose the same sizes.

What it promises, whatever it is told:

- after a failure the next size is smaller, down to 1, and 0 says that 1 failed too;
- a size that failed is tried again only after clean steps whose number quadruples with every growth that fails:
  memory that others took may have come back, and a run must not oscillate;
- of two sizes that ran, the faster one is kept (a larger one is not always faster), and where the allocator had to
  give its cache back step after step, one size lower is tried;
- chunks are even, since a ragged last chunk of one row costs nearly as much time as a full one.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

from legroom.errors import UsageError
from legroom.units import format_size

Phase = Literal["forward", "backward", "optimizer"]

FIRST_WAIT = 6
"""Clean steps before the first growth ..."""
LONGEST_WAIT = 4096
"""... and at most, however often growing failed."""
ENOUGH = 5
"""Timed steps of a size before its speed is compared."""
SLOWER = 0.98
"""Of the other's speed: below it a size counts as slower, above it the two are alike."""
MARGIN = 0.97
"""Of what a step can have: as much as a size may be foretold to need, the rest being for fragmentation."""
UNKNOWN_PROGRESS = 0.3
"""Of the forward pass: taken as done when it failed and nobody knows where. Another failure costs more time than a few steps
in smaller chunks, after which peaks say how far to grow."""
MOST_REMEMBERED = 200
"""Choices, and sizes: a run may take millions of steps."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A size, and why."""

    micro: int
    """Rows in a chunk at most; chunks are even, so a batch may be cut into smaller ones."""
    reason: str


@dataclass(slots=True)
class _Known:
    """What is known of one size that ran."""

    peak: int | None = None
    speeds: deque[float] = field(default_factory=lambda: deque(maxlen=15))
    """Rows a second, of the latest steps."""
    thrashed: deque[bool] = field(default_factory=lambda: deque(maxlen=8))
    """Whether the allocator had to give back its cache, of the latest steps."""

    @property
    def speed(self) -> float | None:
        return median(self.speeds) if len(self.speeds) >= ENOUGH else None


@dataclass(frozen=True, slots=True)
class _Trial:
    """A change that is being tried."""

    before: int
    now: int


def chunk_sizes(batch_size: int, micro: int) -> list[int]:
    """As few chunks as `micro` rows each allow, as even as they can be, the larger ones first.

    >>> chunk_sizes(100, 34), chunk_sizes(9, 4)
    ([34, 33, 33], [3, 3, 3])
    """
    if batch_size < 1 or micro < 1:
        raise UsageError(f"{batch_size} rows cannot be cut into chunks of {micro}: both must be above zero")
    return even(batch_size, -(-batch_size // micro))


def even(rows: int, chunks: int) -> list[int]:
    """So many chunks, as even as they can be, the larger ones first.

    >>> even(7, 3)
    [3, 2, 2]
    """
    each, larger = divmod(rows, chunks)
    return [each + 1] * larger + [each] * (chunks - larger)


class Sizer:
    """Chooses the micro-batch. `most`: never more rows; `remembered`: what `remember()` gave in an earlier run."""

    def __init__(self, *, most: int | None = None, remembered: Mapping[str, Any] | None = None) -> None:
        if most is not None and most < 1:
            raise UsageError(f"a micro-batch of {most} rows is none: give 1 or more, or leave it out")
        self._most = most
        self._limit: int | None = most
        """Rows that are believed to fit; None while nothing has failed."""
        self._failed_at: int | None = None
        """The smallest size that failed since a larger one last ran."""
        self._known: dict[int, _Known] = {}
        self._slower: set[int] = set()
        self._without_gain: set[int] = set()
        """Sizes that thrash, below which it was no faster."""
        self._trial: _Trial | None = None
        self._clean = 0
        self._wait = FIRST_WAIT
        self._before: int | None = None
        self._capacity: int | None = None
        self.choices: list[Choice] = []
        if most is not None:
            self._choose(most, f"no more than {most} rows at a time were allowed")
        if remembered:
            self._recall(remembered)

    # ------------------------------------------------------------ what is asked

    @property
    def choice(self) -> Choice | None:
        """The latest choice; None as long as every batch was taken whole."""
        return self.choices[-1] if self.choices else None

    @property
    def settled(self) -> bool:
        """Whether nothing is being tried and nothing will be at the next step."""
        return self._trial is None and self._clean < self._wait

    def micro_batch(self, batch_size: int) -> int:
        """Rows per chunk for a batch of this size. After clean steps this may grow."""
        if batch_size < 1:
            raise UsageError("a batch without rows cannot be trained on")
        if self._limit is not None and batch_size > self._limit and self._trial is None:
            if self._clean >= self._wait:
                self._grow(batch_size)
            else:
                self._avoid_thrashing(batch_size)
        return self._cut(batch_size)

    # ------------------------------------------------------------ what it is told

    def failed(
        self,
        batch_size: int,
        micro: int,
        failure: Any = None,
        *,
        phase: Phase = "forward",
        before: int | None = None,
        done: float | None = None,
    ) -> int:
        """A step at `micro` rows ran out of memory: the next size, or 0 when there is none.

        `failure` may say `requested`, `free`, `allocated`, `reserved`, `allowed` and `capacity` in bytes. `before`: bytes that were
        allocated when the step began. `done`: which part of the forward pass was done, 0 to 1, where that is known.
        """
        trial, self._trial = self._trial, None
        self._clean = 0
        self._failed_at = micro if self._failed_at is None else min(micro, self._failed_at)
        self._known = {size: known for size, known in self._known.items() if size < micro}
        if before is not None:
            self._before = before
        if micro <= 1:
            self._limit = 1
            self._choose(1, "a single row does not fit: no smaller chunk can help")
            return 0
        if trial is not None and trial.before < micro:
            self._wait = min(self._wait * 4, LONGEST_WAIT)
            self._limit = trial.before
            self._choose(
                trial.before,
                f"{micro} rows were tried and did not fit; {trial.before} did before, and {self._wait} steps pass until "
                "the next attempt",
            )
        else:
            self._limit, reason = self._after_failure(micro, failure, phase, done)
            self._choose(self._limit, reason)
        return self._cut(batch_size)

    def succeeded(
        self,
        batch_size: int,
        micro: int,
        *,
        seconds: float | None = None,
        peak: int | None = None,
        before: int | None = None,
        retries: int = 0,
        capacity: int | None = None,
    ) -> None:
        """A whole step ran with chunks of `micro` rows.

        `peak` and `before`: bytes allocated at most, and when the step began. `retries`: how often the allocator gave
        back its cache for a request. `capacity`: what PyTorch may take of the device now.
        """
        if capacity is not None:
            self._capacity = capacity
        if before is not None:
            self._before = before
        if micro not in self._known and len(self._known) >= MOST_REMEMBERED:
            del self._known[min(self._known)]
        known = self._known.setdefault(micro, _Known())
        if peak is not None:
            known.peak = peak if known.peak is None else max(peak, known.peak)
        known.thrashed.append(retries > 0)
        if self._failed_at is not None and micro >= self._failed_at:
            self._failed_at = None  # what made it fail is gone
        if self._limit is None or micro == self._cut(batch_size):
            self._clean += 1
        if seconds is not None:
            self.timed(batch_size, micro, seconds)
        elif (
            self._trial is not None
            and micro == self._trial.now
            and self._clean >= ENOUGH
            and not known.speeds
        ):
            self._end_trial()  # nobody measures the time: that it ran is all there is to know

    def timed(self, batch_size: int, micro: int, seconds: float) -> None:
        """How long such a step took, where that is known only later (from CUDA events)."""
        if seconds <= 0 or micro not in self._known:
            return
        self._known[micro].speeds.append(batch_size / seconds)
        if self._trial is not None:
            self._compare(self._trial)

    def agree(self, micro: int, reason: str) -> None:
        """Others decided: this many rows from now on."""
        self._trial = None
        self._clean = 0
        self._limit = micro
        self._choose(micro, reason)

    # ------------------------------------------------------------ across runs

    def remember(self) -> dict[str, Any]:
        """What is worth knowing in the next run, as plain data. A size that is on trial is not."""
        rows = self._limit if self._trial is None else self._trial.before
        largest = max(self._known, default=None)
        return {"version": 1, "rows": rows, "ran": largest, "failed": self._failed_at}

    def _recall(self, remembered: Mapping[str, Any]) -> None:
        rows, failed = remembered.get("rows"), remembered.get("failed")
        if remembered.get("version") != 1 or not isinstance(rows, int) or isinstance(rows, bool) or rows < 1:
            return
        if self._most is not None and rows >= self._most:
            return
        self._limit = rows
        if isinstance(failed, int) and failed > rows:
            self._failed_at = failed
        self._wait = FIRST_WAIT * 4
        self._choose(rows, f"{rows} rows fitted in an earlier run with this model on this GPU")

    # ------------------------------------------------------------ after a failure

    def _after_failure(self, micro: int, failure: Any, phase: Phase, done: float | None) -> tuple[int, str]:
        smaller = micro - 1
        foretold = self._foretold()
        if foretold is not None and 1 <= foretold < micro:
            return foretold, f"{foretold} rows should fit, by the peaks of sizes that ran"
        if phase == "optimizer":
            return max(1, micro // 2), (
                "the optimizer's step did not fit; fewer rows leave it what activations and their cache held"
            )
        room, needed = self._figures(failure)
        if room is None or needed is None:
            return max(1, micro // 2), "half as many rows: the failure said nothing of how much was missing"
        part = 1.0 if phase == "backward" else min(1.0, max(0.05, done or UNKNOWN_PROGRESS))
        rows = int(micro * MARGIN * room * part / needed)
        progress = f", {part:.0%} through the forward pass" if done and phase == "forward" else ""
        return min(smaller, max(1, rows)), (
            f"{micro} rows had asked for {format_size(needed)} by then{progress}; a step can have {format_size(room)}"
        )

    def _figures(self, failure: Any) -> tuple[int | None, int | None]:
        """What the step could have of the device, and what it wanted when it failed; weights and the like left out."""
        requested, allocated = _figure(failure, "requested"), _figure(failure, "allocated")
        free, reserved = _figure(failure, "free"), _figure(failure, "reserved")
        if requested is None or allocated is None:
            return None, None
        limits = (_figure(failure, "capacity"), _figure(failure, "allowed"))
        bounds = [limit for limit in limits if limit is not None]
        if free is not None:
            bounds.append((reserved if reserved is not None else allocated) + free)
        if not bounds:
            return None, None
        before = min(self._before or 0, allocated)
        room, needed = min(bounds) - before, allocated + requested - before
        return (room, needed) if room > 0 and needed > 0 else (None, None)

    # ------------------------------------------------------------ growing

    def _grow(self, batch_size: int) -> None:
        """The next larger size that leaves fewer chunks, or several at once where the peaks say that they fit."""
        assert self._limit is not None
        now = self._cut(batch_size)
        chunks = -(-batch_size // now)
        most = min(batch_size, self._most or batch_size)
        sizes = [
            size for size in {-(-batch_size // fewer) for fewer in range(1, chunks)} if now < size <= most
        ]
        foretold = self._foretold()
        allowed = sorted(
            size for size in sizes if size not in self._slower and (foretold is None or size <= foretold)
        )
        if not allowed:
            self._clean = 0
            return
        below = [size for size in allowed if self._failed_at is None or size < self._failed_at]
        if foretold is not None and below:
            size, reason = below[-1], f"{below[-1]} rows should fit, by the peaks of sizes that ran"
        elif below:
            halfway = 2 * now if self._failed_at is None else (now + self._failed_at) // 2
            near = [size for size in below if size <= halfway] or below[:1]
            size, reason = near[-1], f"{self._clean} steps ran without trouble: room for more is tried"
        else:
            size = allowed[0]
            reason = f"{self._clean} steps ran since {self._failed_at} rows failed: what took the memory may be gone"
        self._begin_trial(now, size, reason)

    def _foretold(self) -> int | None:
        """How many rows fit, by the peaks that were measured and the capacity; None where either is unknown.

        Two sizes give a line. One gives a bound that is safe as long as memory grows no faster than the rows.
        """
        peaks = {size: known.peak for size, known in self._known.items() if known.peak is not None}
        if not peaks or self._capacity is None:
            return None
        small, large = min(peaks), max(peaks)
        start = min(self._before or 0, self._capacity)
        room = start + (self._capacity - start) * MARGIN
        slope = (peaks[large] - start) / large
        if small < large and peaks[large] > peaks[small]:
            slope = (peaks[large] - peaks[small]) / (large - small)
        if slope <= 0:
            return None
        return max(0, int(large + (room - peaks[large]) / slope))

    # ------------------------------------------------------------ which size is faster

    def _avoid_thrashing(self, batch_size: int) -> None:
        now = self._cut(batch_size)
        known = self._known.get(now)
        if known is None or now <= 1 or now in self._without_gain:
            return
        if len(known.thrashed) == known.thrashed.maxlen and sum(known.thrashed) * 2 >= len(known.thrashed):
            self._without_gain.add(now)
            if known.speed is not None:
                lower = -(-batch_size // (-(-batch_size // now) + 1))
                reason = (
                    f"at {now} rows the allocator gave back its cache again and again: fewer may be faster"
                )
                self._begin_trial(now, lower, reason)

    def _compare(self, trial: _Trial) -> None:
        now, before = self._known.get(trial.now), self._known.get(trial.before)
        if now is None or now.speed is None:
            return
        old = before.speed if before is not None else None
        if old is None:
            self._end_trial()
            return
        smaller_is_tried = trial.now < trial.before
        if now.speed < old * (1.0 if smaller_is_tried else SLOWER):
            self._trial = None
            self._clean = 0
            self._limit = trial.before
            self._slower.add(trial.now)
            self._choose(
                trial.before,
                f"{now.speed:.3g} rows a second in chunks of {trial.now}, {old:.3g} in chunks of {trial.before}",
            )
            return
        if smaller_is_tried:
            self._slower.add(trial.before)
        self._end_trial()

    def _begin_trial(self, now: int, size: int, reason: str) -> None:
        self._trial = _Trial(now, size)
        self._limit = size
        self._clean = 0
        self._choose(size, reason)

    def _end_trial(self) -> None:
        """What was tried is kept."""
        self._trial = None
        self._wait = max(FIRST_WAIT, self._wait // 2)

    # ------------------------------------------------------------

    def _cut(self, batch_size: int) -> int:
        return chunk_sizes(batch_size, min(batch_size, self._limit or batch_size))[0]

    def _choose(self, micro: int, reason: str) -> None:
        self.choices.append(Choice(micro, reason))
        del self.choices[:-MOST_REMEMBERED]


def _figure(failure: Any, name: str) -> int | None:
    value = getattr(failure, name, None)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
