"""Measures the packing of trials on GPUs, as the makespan relative to one trial per GPU and to an oracle.

    python -m bench.tuning.packing

Trials of random sizes and durations are simulated on two GPUs of different sizes, with the `Packer` and the runtime
model of the engines. Trials that share a GPU do not slow each other down, because the program measures only the
packing. Durations are either random, or follow from the configuration up to 20% and are learned from reports. The
oracle is the best of many orders, with all trials and durations known in advance.

If packing is more than 10% worse than the oracle, `odds known` shows the result of the same planner with known
distributions of each trial's duration. `bench.tuning.packing_optimum` shows that such plans are close to the best
possible plans without knowledge of the future. No schedule can be shorter than the bound.
"""

import heapq
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from bench.lib.command_line import command_line
from bench.lib.table import print_table
from legroom.tuning.memory.admission import Admission, AdmissionVerdict, Fit, TrialGpu
from legroom.tuning.memory.packing import Packer
from legroom.tuning.memory.runtime_model import SAMPLES, RuntimeModel, RuntimeSamples
from legroom.tuning.space.space import Config, read_space
from legroom.tuning.trial_dispatch import PREPARED_PER_SLOT
from legroom.units import GiB

SPACE = read_space({"width": {"uniform": [0.0, 1.0]}, "epochs": {"uniform": [0.0, 1.0]}})
SLOTS = 8
STUDIES = (40, 100)
"""The numbers of trials per study."""
GPUS = [TrialGpu(index=0, memory=24 * GiB, virtual=True), TrialGpu(index=1, memory=8 * GiB, virtual=True)]
ORDERS, DRAWS = 100, 300
"""The number of random orders that the oracle tries, and the number of samples of each trial's runtime."""
TARGET = 0.9
"""Below this ratio to the oracle, the planner also runs with known distributions."""

Kind = Callable[[float, float, random.Random], tuple[float, float, int]]
"""A function that returns GiB, seconds per report and the number of reports, from two numbers between 0 and 1 and a
random source."""


@dataclass(frozen=True, slots=True)
class Work:
    """A trial with the memory and the time that it needs."""

    width: float
    epochs: float
    size: int
    seconds: float
    reports: int = 1

    @property
    def config(self) -> dict[str, float]:
        return {"width": self.width, "epochs": self.epochs}


def main() -> None:
    command_line(__doc__).parse_args()
    for trials in STUDIES:
        rows = [
            [f"{name}{', random' if is_random else ''}", *figures(kind, is_random, trials)]
            for name, kind in KINDS.items()
            for is_random in (False, True)
        ]
        header = ["trials", "one per GPU / packed", "oracle / packed", "worst of ten", "oracle / odds known", "bound / packed"]  # fmt: skip
        print_table(f"{trials} trials on 24 GiB and 8 GiB, at most {SLOTS} at once", header, rows)


def figures(kind: Kind, is_random: bool, trials: int) -> list[str]:
    """Return means over ten studies, and the worst ratio to the oracle."""
    against_one, against_oracle, against_bound, with_odds = [], [], [], []
    for seed in range(10):
        rng = random.Random(seed)
        works = [draw(kind, is_random, rng) for _ in range(trials)]
        ours, knows_all = packed(works, GPUS, RuntimeModel(SPACE)), oracle(works, GPUS, rng)
        against_one.append(one_per_gpu(works, GPUS) / ours)
        against_oracle.append(knows_all / ours)
        against_bound.append(bound(works, GPUS) / ours)
        with_odds.append((works, knows_all))
    mean = statistics.fmean(against_oracle)
    known = statistics.fmean(o / packed(w, GPUS, KnownOdds(kind, is_random, w)) for w, o in with_odds) if mean < TARGET else None  # fmt: skip
    return [
        f"{statistics.fmean(against_one):.2f}",
        f"{mean:.1%}",
        f"{min(against_oracle):.1%}",
        "" if known is None else f"{known:.1%}",
        f"{statistics.fmean(against_bound):.1%}",
    ]


class KnownOdds(RuntimeModel):
    """Predicts runtimes from their true distribution. This is the best possible prediction without knowing the actual
    durations."""

    def __init__(self, kind: Kind, is_random: bool, works: Sequence[Work]) -> None:
        super().__init__(SPACE)
        rng = random.Random(-1)
        self._likely = {work.width: [pace * reports for _ in range(DRAWS) for _, pace, reports in [_drawn(kind, is_random, work.width, work.epochs, rng)]] for work in works}  # fmt: skip
        self._began: dict[int, tuple[float, float]] = {}

    def started(self, number: int, config: Config, size: int, now: float, *, from_start: bool = True) -> None:
        self._began[number] = config["width"], now

    def predict(self, waiting: Mapping[int, tuple[Config, int]], now: float) -> RuntimeSamples:
        rng = random.Random(0)
        running = {}
        for number, (width, began) in self._began.items():
            left = [length - (now - began) for length in self._likely[width] if length > now - began]
            running[number] = rng.choices(left or [now - began], k=SAMPLES)
        lengths = {n: rng.choices(self._likely[config["width"]], k=SAMPLES) for n, (config, _) in waiting.items()}  # fmt: skip
        return RuntimeSamples(lengths, running)


def packed(works: Sequence[Work], gpus: Sequence[TrialGpu], lengths: RuntimeModel) -> float:
    """Pack trials with the engine's rule and look-ahead, in the order in which they are proposed."""
    packer = Packer(gpus, slots=SLOTS)
    coming, waiting = list(enumerate(works)), dict[int, Admission]()
    clock, ends, heard = 0.0, list[tuple[float, int]](), list[tuple[float, int]]()
    while coming or waiting or ends:
        while coming and len(waiting) < PREPARED_PER_SLOT * SLOTS:
            number, work = coming.pop(0)
            waiting[number] = _admission(work, gpus)
        configurations = {number: (works[number].config, works[number].size) for number in waiting}
        placement = packer.place(waiting, predict_runtimes=partial(lengths.predict, configurations, clock))
        if placement is not None:
            number, work = placement.number, works[placement.number]
            del waiting[number]
            lengths.started(number, work.config, work.size, clock)
            heapq.heappush(ends, (clock + work.seconds, number))
            for report in range(work.reports):
                heapq.heappush(heard, (clock + work.seconds * (report + 1) / work.reports, number))
        else:
            clock, number = heapq.heappop(ends)
            packer.release(number)
            while heard and heard[0][0] <= clock + 1e-9:
                lengths.reported(heard[0][1], heapq.heappop(heard)[0])
            lengths.ended(number, clock)
    return clock


def one_per_gpu(works: Sequence[Work], gpus: Sequence[TrialGpu]) -> float:
    """Assign each trial, in order, to the next free GPU that is large enough."""
    free = {gpu.index: 0.0 for gpu in gpus}
    for work in works:
        able = [gpu for gpu in gpus if gpu.memory >= work.size]
        index = min(able, key=lambda gpu: (free[gpu.index], gpu.memory)).index
        free[index] += work.seconds
    return max(free.values())


def oracle(works: Sequence[Work], gpus: Sequence[TrialGpu], rng: random.Random) -> float:
    """Return the best of many orders, starting with orders that are known to be good."""
    orders: list[list[Work]] = [
        sorted(works, key=lambda work: -work.seconds),
        sorted(works, key=lambda work: -work.size),
        sorted(works, key=lambda work: -work.size * work.seconds),
    ]
    best, kept = min(((_listed(order, gpus), order) for order in orders), key=lambda pair: pair[0])
    for _ in range(ORDERS):
        order = kept.copy()
        a, b = rng.randrange(len(order)), rng.randrange(len(order))
        order[a], order[b] = order[b], order[a]
        length = _listed(order, gpus)
        if length <= best:
            best, kept = length, order
    return best


def _listed(order: Sequence[Work], gpus: Sequence[TrialGpu]) -> float:
    """Start each trial as early as memory allows, in this order. Later trials may start earlier if they fit."""
    free = {gpu.index: gpu.memory for gpu in gpus}
    left, ends, clock, count = list(order), list[tuple[float, int, int, int]](), 0.0, 0
    while left or ends:
        for work in list(left):
            able = [gpu for gpu in gpus if free[gpu.index] >= work.size]
            if able and len(ends) < SLOTS:
                index = min(able, key=lambda gpu: free[gpu.index] - work.size).index
                free[index] -= work.size
                count += 1
                heapq.heappush(ends, (clock + work.seconds, count, index, work.size))
                left.remove(work)
        clock, _, index, size = heapq.heappop(ends)
        free[index] += size
    return clock


def bound(works: Sequence[Work], gpus: Sequence[TrialGpu]) -> float:
    """Return a lower bound of the makespan from memory times time, the longest trial, and the slots."""
    area = sum(work.size * work.seconds for work in works) / sum(gpu.memory for gpu in gpus)
    return max(area, max(work.seconds for work in works), sum(work.seconds for work in works) / SLOTS)


def _admission(work: Work, gpus: Sequence[TrialGpu]) -> Admission:
    fits = {p.index: Fit(predicted=work.size, safe=work.size) for p in gpus if p.memory >= work.size}
    return Admission(verdict=AdmissionVerdict.FITS, fits=fits)


def draw(kind: Kind, is_random: bool, rng: random.Random) -> Work:
    """Draw a trial. Its size follows from `width`, and its duration follows from `epochs` or is random."""
    width, epochs = rng.random(), rng.random()
    size, pace, reports = _drawn(kind, is_random, width, epochs, rng)
    return Work(width, epochs, round(size * GiB), pace * reports, reports)


def _drawn(
    kind: Kind, is_random: bool, width: float, epochs: float, rng: random.Random
) -> tuple[float, float, int]:
    size, pace, reports = kind(width, rng.random() if is_random else epochs, rng)
    return size, pace * (1.0 if is_random else rng.uniform(0.8, 1.2)), reports


def all_sizes(width: float, length: float, _: random.Random) -> tuple[float, float, int]:
    return 1 + 19 * width, 1.0, round(10 + 90 * length)


def mostly_small(width: float, length: float, _: random.Random) -> tuple[float, float, int]:
    return 1 + 5 * width, 1.0, round(10 + 90 * length)


def small_and_long(width: float, length: float, _: random.Random) -> tuple[float, float, int]:
    return (2.0, 1.0, round(60 + 60 * length)) if width < 0.7 else (16.0, 1.0, round(10 + 20 * length))


def cut_short(width: float, length: float, rng: random.Random) -> tuple[float, float, int]:
    """Return a trial that ASHA stops after a random number of reports. The time per report is not random."""
    return 1 + 11 * width, 6.0**length, 4 * 2 ** min(4, int(rng.expovariate(1.0)))


KINDS: dict[str, Kind] = {
    "all sizes, 1 to 20 GiB": all_sizes,
    "mostly small, 1 to 6 GiB": mostly_small,
    "small and long, large and short": small_and_long,
    "cut short by ASHA": cut_short,
}

if __name__ == "__main__":
    main()
