"""Compares plans with the best possible plans for random durations, by solving small studies exactly.

    python -m bench.tuning.packing_optimum

Each study has five trials on one GPU with four units of memory. A trial takes 1, 2 or 4 times its pace, with the
probabilities of ASHA. Sizes, paces and probabilities are known in advance, but a duration is known only when the trial
ends. Dynamic programming over all states and all sets of trials that can start, including none, finds the best policy.
The program simulates this policy and `legroom.tuning.memory.start_order` with many draws, and compares both with the
best schedule with all durations known.
"""

import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import combinations, permutations, product
from typing import NamedTuple

from bench.lib.command_line import command_line
from bench.lib.table import print_table
from legroom.tuning.memory.start_order import Allocation, Capacity, Demand, best_order, makespan

MEMORY = 4
TRIALS = 5
ODDS = {1: 0.63, 2: 0.23, 4: 0.14}
"""Maps durations in paces to probabilities."""
STUDIES, DRAWS, SAMPLES = 10, 60, 16

WAITS = -1


class Trial(NamedTuple):
    """A trial that has not ended, with the memory that it needs and the time for which it has run."""

    size: int
    pace: int
    at: int = WAITS

    def left(self) -> dict[int, float]:
        """Return the possible remaining durations and their probabilities."""
        at = max(0, self.at)
        possible = {length * self.pace - at: odds for length, odds in ODDS.items() if length * self.pace > at}
        return {left: odds / sum(possible.values()) for left, odds in possible.items()}


State = tuple[Trial, ...]
"""All trials that have not ended. They are sorted, so that states that differ only in names are equal."""
Policy = Callable[[dict[int, Trial]], int | None]
"""A function that returns the trial to start now, if any, from all trials that have not ended."""


def main() -> None:
    command_line(__doc__).parse_args()
    rows = []
    for name, paces in (("paces alike", (1,)), ("paces of 1 and 2", (1, 2))):
        knowing, planning, both = [], [], []
        for seed in range(STUDIES):
            rng = random.Random(seed)
            trials = [Trial(rng.choice((1, 1, 2, 3)), rng.choice(paces)) for _ in range(TRIALS)]
            draws = [[rng.choices(list(ODDS), list(ODDS.values()))[0] * t.pace for t in trials] for _ in range(DRAWS)]  # fmt: skip
            chosen = best_online(tuple(sorted(trials)))
            best = statistics.fmean(simulated(trials, draw, chosen) for draw in draws)
            planned = statistics.fmean(simulated(trials, draw, partial(planned_next, rng)) for draw in draws)
            known = statistics.fmean(with_known_durations(trials, draw) for draw in draws)
            knowing.append(known / best)
            planning.append(best / planned)
            both.append(known / planned)
        rows.append([name, *(f"{statistics.fmean(ratios):.1%}" for ratios in (knowing, planning, both))])
    header = ["", "oracle / best on-line", "best on-line / planned", "oracle / planned"]
    print_table(f"{TRIALS} trials, {STUDIES} studies, {DRAWS} draws each", header, rows)


def best_online(trials: State) -> Policy:
    """Return the policy with the smallest expected makespan without knowledge of the future."""

    @cache
    def expected(state: State) -> float:
        """Return the expected time until all trials have ended, before a trial starts."""
        return min((after(started) for started in _choices(state)), default=0.0)

    @cache
    def after(state: State) -> float:
        """Return the expected time after one unit of time in which no trial starts. Several trials may end."""
        running = [trial for trial in state if trial.at != WAITS]
        waiting = [trial for trial in state if trial.at == WAITS]
        ends = [trial.left().get(1, 0.0) for trial in running]
        total = 1.0
        for over in product((False, True), repeat=len(running)):
            odds, then = 1.0, list(waiting)
            for trial, end, is_over in zip(running, ends, over, strict=True):
                odds *= end if is_over else 1 - end
                if not is_over:
                    then.append(trial._replace(at=trial.at + 1))
            if odds:
                total += odds * expected(tuple(sorted(then)))
        return total

    def chosen(state: dict[int, Trial]) -> int | None:
        now = tuple(sorted(state.values()))
        then = min(_choices(now), key=after)
        started = Counter(t[:2] for t in then if t.at == 0) - Counter(t[:2] for t in now if t.at == 0)
        return next((number for number, t in state.items() if t.at == WAITS and t[:2] in started), None)

    expected(trials)
    return chosen


def _choices(state: State) -> Iterator[State]:
    """Yield all sets of trials that can start now, including the empty set if a trial runs."""
    waiting, running = ([t for t in state if (t.at == WAITS) is waits] for waits in (True, False))
    free, seen = MEMORY - sum(trial.size for trial in running), set()
    for count in range(0 if running else 1, len(waiting) + 1):
        for chosen in combinations(range(len(waiting)), count):
            started = [
                trial._replace(at=0) if index in chosen else trial for index, trial in enumerate(waiting)
            ]
            then = tuple(sorted(running + started))
            if then not in seen and sum(waiting[index].size for index in chosen) <= free:
                seen.add(then)
                yield then


def simulated(trials: Sequence[Trial], draw: Sequence[int], chosen: Policy) -> float:
    """Simulate one draw with this policy."""
    state, clock = dict(enumerate(trials)), 0
    while state:
        while (number := chosen(state)) is not None:
            state[number] = state[number]._replace(at=0)
        clock += 1
        state = {n: t if t.at == WAITS else t._replace(at=t.at + 1) for n, t in state.items() if t.at + 1 < draw[n]}  # fmt: skip
    return clock


def planned_next(rng: random.Random, state: dict[int, Trial]) -> int | None:
    """Return the trial that the planner starts now."""
    free = MEMORY - sum(trial.size for trial in state.values() if trial.at != WAITS)
    able = [number for number, trial in state.items() if trial.at == WAITS and trial.size <= free]
    if len(able) < 2:
        return next(iter(able), None)

    def predict(trial: Trial) -> list[float]:
        left = trial.left()
        return [float(length) for length in rng.choices(list(left), list(left.values()), k=SAMPLES)]

    demands = {n: Demand([trial.size], predict(trial)) for n, trial in state.items() if trial.at == WAITS}
    running = [Allocation([(0, trial.size)], predict(trial)) for trial in state.values() if trial.at != WAITS]
    order = best_order(demands, Capacity([free], running, slots=TRIALS))
    return next(number for number in order if number in able)


def with_known_durations(trials: Sequence[Trial], draw: Sequence[int]) -> float:
    """Return the best schedule of one draw over all orders."""
    demands = {n: Demand([trial.size], [float(draw[n])]) for n, trial in enumerate(trials)}
    least, room = {n: trial.size for n, trial in enumerate(trials)}, Capacity([MEMORY], [], slots=TRIALS)
    kinds = {n: (trial.size, draw[n]) for n, trial in enumerate(trials)}
    orders = {tuple(kinds[n] for n in order): order for order in permutations(kinds)}
    return min(makespan(order, demands, least, room, 0) for order in orders.values())


if __name__ == "__main__":
    main()
