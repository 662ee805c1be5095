"""The gate in front of trials: what fits, what is split, what never fits, and what is traced only once."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import legroom
from legroom.tuning.memory.admission import Admission, Place, Verdict, virtual_places
from legroom.tuning.memory.gate import ENDS, MemoryGate
from legroom.tuning.memory.tracer import CannotEstimate, Traced
from legroom.tuning.schedule.schedulers import Action
from legroom.tuning.space.space import Config, read_space
from legroom.tuning.trial.function import TrainFunction
from legroom.tuning.trial.process import Order, run_trial
from legroom.tuning.trial.records import TrialState
from legroom.tuning.trial.trial import Reported
from legroom.units import MiB

FILE = Path(__file__).with_name("tuned_functions.py")
NETWORK = TrainFunction.of(f"{FILE}:network")
SPACE = read_space({"width": {"int_log2": [4, 14]}, "batch_size": [64, 512], "lr": {"log": [1e-3, 1e-1]}})
PLACES = virtual_places("8MiB,24MiB")
WHOLE = {"width": 256, "batch_size": 64, "lr": 0.01}
SPLIT = {"width": 16384, "batch_size": 512, "lr": 0.01}
NEVER = {"width": 1 << 20, "batch_size": 64, "lr": 0.01}


@pytest.fixture(scope="module")
def gate() -> Iterator[MemoryGate]:
    gate = MemoryGate(TrainFunction.of(f"{FILE}:any_of_these"), PLACES, SPACE)
    yield gate
    gate.close()


def answer(gate: MemoryGate, config: Config) -> Admission:
    return gate.ask(config).result(timeout=120)


class GoOn:
    def __init__(self) -> None:
        self.told: list[Reported] = []

    def report(self, told: Reported) -> Action:
        self.told.append(told)
        return Action.GO_ON


def test_what_fits_is_taken_whole_on_every_gpu(gate: MemoryGate) -> None:
    told = answer(gate, WHOLE)
    assert told.verdict is Verdict.FITS
    assert [told.fits[place.index].micro_batch for place in PLACES] == [None, None]


def test_what_fits_in_pieces_gets_the_micro_batch_and_runs_as_foretold(
    gate: MemoryGate, tmp_path: Path
) -> None:
    told = answer(gate, SPLIT)
    assert told.verdict is Verdict.SPLIT
    assert told.batch_size == 512
    small, large = told.fits[0], told.fits[1]
    assert small.micro_batch is not None
    assert large.micro_batch is not None
    assert small.micro_batch < large.micro_batch < 512
    channel = GoOn()
    order = Order(
        number=0, config=SPLIT, function=NETWORK, folder=str(tmp_path), place=PLACES[1], cap=large.safe, micro_batch=large.micro_batch
    )  # fmt: skip
    end = run_trial(order, channel)
    assert end.state is TrialState.FINISHED
    assert end.ooms == 0
    assert end.actual_bytes is not None
    assert end.actual_bytes <= large.safe
    assert channel.told[-1].micro_batch == large.micro_batch


def test_a_split_trial_learns_what_the_whole_batch_would(tmp_path: Path) -> None:
    """The configuration that is tried stays the configuration: same losses, whatever the micro-batch."""
    losses = []
    for micro_batch in (None, 40):
        channel = GoOn()
        order = Order(
            number=0,
            config={"width": 64, "batch_size": 512, "lr": 0.1},
            function=NETWORK,
            folder=str(tmp_path),
            micro_batch=micro_batch,
        )
        assert run_trial(order, channel).state is TrialState.FINISHED
        losses.append([told.metrics["loss"] for told in channel.told])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_what_never_fits_is_told_with_how_much_is_missing(gate: MemoryGate) -> None:
    told = answer(gate, NEVER)
    assert told.verdict is Verdict.NEVER
    assert told.needed is not None
    assert told.needed > max(place.memory for place in PLACES)
    assert "even in micro-batches of 1 it needs" in told.why
    assert "there are 24.0 MiB" in told.why
    assert told.shortage > 0


def test_what_was_traced_is_not_traced_again(gate: MemoryGate) -> None:
    first, again = answer(gate, WHOLE), answer(gate, dict(WHOLE))
    assert again.is_cached
    assert again.fits == first.fits


def test_a_learning_rate_is_found_not_to_matter_and_a_width_to_matter(gate: MemoryGate) -> None:
    answer(gate, WHOLE)
    assert not answer(gate, {**WHOLE, "lr": 0.03}).is_cached  # so that both ends of lr are tried
    after_ends(gate)
    assert answer(gate, {**WHOLE, "lr": 0.07}).is_cached
    assert not answer(gate, {**WHOLE, "width": 64}).is_cached


def test_a_function_without_a_guard_cannot_be_split(gate: MemoryGate) -> None:
    told = answer(gate, {"width": 1 << 14, "batch_size": 512, "kind": "without guard"})
    assert told.verdict is Verdict.NEVER
    assert told.why.startswith("it has no trial.guard, so its batch cannot be split")


def test_a_function_that_needs_data_runs_alone_and_the_reason_is_said(gate: MemoryGate) -> None:
    told = answer(gate, {**WHOLE, "kind": "needs data"})
    assert told.verdict is Verdict.UNKNOWN
    assert told.fits[0].safe == 8 * MiB
    assert "the data are not what they were" in told.why
    assert "such trials run alone on a GPU" in told.why


class Arithmetic:
    """A tracer that calculates: a mebibyte a row and one for the rest; `lr` above a half takes one more."""

    def __init__(self, function: TrainFunction, places: Sequence[Place], ranks: int) -> None:
        self.places = list(places)
        self.traced: list[tuple[Config, int | None]] = []
        self.in_hurry: list[bool] = []

    def trace(self, config: Config, micro_batch: int | None, *, in_hurry: bool) -> Traced:
        self.traced.append((config, micro_batch))
        self.in_hurry.append(in_hurry)
        if config["batch_size"] == 13:
            raise CannotEstimate("it is superstitious")
        size = (1 + min(config["batch_size"], micro_batch or 999) + (config["lr"] > 0.5)) * MiB
        fits = tuple(size <= place.room for place in self.places)
        return Traced(
            reserved=size, safe=size, fits=fits, rows=config["batch_size"], fewest=1, splits=True, asked_for=str(size), seconds=0.0
        )  # fmt: skip

    def kill(self) -> None: ...
    def close(self) -> None: ...


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryGate]:
    monkeypatch.setattr("legroom.tuning.memory.gate.Tracer", Arithmetic)
    gate = MemoryGate(
        NETWORK, virtual_places("10MiB"), read_space({"batch_size": [8, 16], "lr": {"uniform": [0, 1]}})
    )
    yield gate
    gate.close()


def traced(gate: MemoryGate) -> list[tuple[Config, int | None]]:
    tracer = gate._tracers[0]
    assert isinstance(tracer, Arithmetic)
    return tracer.traced


def test_the_largest_micro_batch_takes_few_traces(quick: MemoryGate) -> None:
    told = answer(quick, {"batch_size": 100, "lr": 0.1})
    assert told.fits[0].micro_batch == 9
    assert len([one for one in traced(quick) if one[0]["lr"] == 0.1]) <= 4


def test_what_fits_whole_is_answered_before_pieces_of_what_was_asked_earlier_are_traced(
    quick: MemoryGate,
) -> None:
    begin = threading.Event()
    quick._jobs.put((-1, next(quick._order), begin.wait))
    large, small = {"batch_size": 100, "lr": 0.1}, {"batch_size": 4, "lr": 0.1}
    answers = [quick.ask(large), quick.ask(small)]
    begin.set()
    assert [asked.result(timeout=60).verdict for asked in answers] == [Verdict.SPLIT, Verdict.FITS]
    assert traced(quick)[:3] == [(large, None), (small, None), (large, 1)]


def test_a_parameter_that_changes_memory_at_one_end_of_its_range_counts(quick: MemoryGate) -> None:
    answer(quick, {"batch_size": 4, "lr": 0.1})
    answer(quick, {"batch_size": 4, "lr": 0.2})
    after_ends(quick)
    assert ({"batch_size": 4, "lr": 1.0}, None) in traced(quick)
    assert not answer(quick, {"batch_size": 4, "lr": 0.3}).is_cached


def test_the_ends_of_a_range_are_tried_once_that_can_spare_a_trace(quick: MemoryGate) -> None:
    answer(quick, {"batch_size": 4, "lr": 0.1})
    answer(quick, {"batch_size": 5, "lr": 0.2})
    after_ends(quick)
    assert len(traced(quick)) == 2
    answer(quick, {"batch_size": 5, "lr": 0.3})
    after_ends(quick)
    assert [config["lr"] for config, _ in traced(quick)][2:] == [0.3, 0.0, 1.0]


def test_only_whole_batches_are_in_a_hurry(quick: MemoryGate) -> None:
    begin = threading.Event()
    quick._jobs.put((-1, next(quick._order), begin.wait))
    asked = quick.ask({"batch_size": 100, "lr": 0.1})
    assert quick.is_looking
    begin.set()
    assert asked.result(timeout=60).verdict is Verdict.SPLIT
    assert not quick.is_looking
    tracer = quick._tracers[0]
    assert isinstance(tracer, Arithmetic)
    assert tracer.in_hurry == [micro is None for _, micro in tracer.traced]


def after_ends(gate: MemoryGate) -> None:
    """Waits until everything that the gate has put off is done."""
    done = threading.Event()
    gate._jobs.put((ENDS + 1, next(gate._order), done.set))
    assert done.wait(timeout=60)


def test_a_gpu_that_was_full_in_spite_of_an_estimate_makes_later_ones_larger(quick: MemoryGate) -> None:
    config = {"batch_size": 4, "lr": 0.1}
    before = answer(quick, config).fits[0]
    quick.ran_out(config, before, needed=round(1.5 * before.predicted))
    after = answer(quick, config).fits[0]
    assert after.safe == before.safe + round(1.05 * round(1.5 * before.predicted)) - before.predicted
    assert (
        answer(quick, {"batch_size": 8, "lr": 0.1}).fits[0].micro_batch is not None
    )  # 9 MiB fitted; 14 do not


def test_an_estimate_that_was_too_low_rejects_nothing_that_fits_by_its_own(quick: MemoryGate) -> None:
    small, large = {"batch_size": 1, "lr": 0.1}, {"batch_size": 8, "lr": 0.1}
    quick.ran_out(small, answer(quick, small).fits[0], needed=11 * MiB)
    told = answer(quick, large)
    assert told.verdict is Verdict.FITS
    assert told.fits[0].safe == 10 * MiB  # a GPU to itself
    assert told.fits[0].micro_batch is None


def test_where_nothing_had_been_foretold_nothing_is_corrected(quick: MemoryGate) -> None:
    unknown = {"batch_size": 13, "lr": 0.1}
    before = answer(quick, {"batch_size": 4, "lr": 0.1}).fits[0]
    quick.ran_out(unknown, answer(quick, unknown).fits[0], needed=10 * MiB)
    assert answer(quick, {"batch_size": 4, "lr": 0.1}).fits[0] == before


def test_what_cannot_be_traced_is_unknown_and_others_are_not(quick: MemoryGate) -> None:
    assert answer(quick, {"batch_size": 13, "lr": 0.1}).verdict is Verdict.UNKNOWN
    assert answer(quick, {"batch_size": 4, "lr": 0.1}).verdict is Verdict.FITS


class Others:
    """Other programs, that hold what they are told to hold."""

    mebibytes = 0

    def held(self, place: Place) -> int:
        return self.mebibytes * MiB


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[MemoryGate, Others]]:
    """A gate to a GPU of 10 MiB that others use too."""
    monkeypatch.setattr("legroom.tuning.memory.gate.Tracer", Arithmetic)
    others = Others()
    gate = MemoryGate(
        NETWORK,
        [Place(index=0, memory=10 * MiB)],
        read_space({"batch_size": [8]}),
        neighbours=others,  # type: ignore[arg-type]
    )
    yield gate, others
    gate.close()


def test_what_other_programs_hold_makes_the_pieces_smaller_as_long_as_they_hold_it(
    shared: tuple[MemoryGate, Others],
) -> None:
    gate, others = shared
    others.mebibytes = 4
    split = answer(gate, {"batch_size": 8, "lr": 0.1}).fits[0]
    assert (split.micro_batch, split.safe, split.held) == (4, 5 * MiB, 4 * MiB)
    others.mebibytes = 0
    whole = answer(gate, {"batch_size": 8, "lr": 0.1}).fits[0]
    assert (whole.micro_batch, whole.held) == (None, 0)


def test_a_batch_that_is_too_large_anyway_is_not_laid_to_others(shared: tuple[MemoryGate, Others]) -> None:
    gate, others = shared
    others.mebibytes = 1
    assert answer(gate, {"batch_size": 100, "lr": 0.1}).fits[0].held == 0


def test_what_does_not_fit_beside_others_is_told_with_what_they_hold(
    shared: tuple[MemoryGate, Others],
) -> None:
    gate, others = shared
    others.mebibytes = 9
    told = answer(gate, {"batch_size": 8, "lr": 0.1})
    assert told.verdict is Verdict.NEVER
    assert told.why == (
        "even in micro-batches of 1 it needs 2.0 MiB, and there are 1.0 MiB beside the 9.0 MiB that other programs hold"
    )


def test_parameters_that_the_user_names_are_the_only_ones_that_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legroom.tuning.memory.gate.Tracer", Arithmetic)
    gate = MemoryGate(NETWORK, virtual_places("10MiB"), SPACE, shape_parameters=frozenset({"batch_size"}))
    answer(gate, {"batch_size": 4, "lr": 0.1})
    assert answer(gate, {"batch_size": 4, "lr": 0.9}).is_cached
    assert len(traced(gate)) == 1
    gate.close()


def test_a_trial_is_capped_at_its_share(tmp_path: Path) -> None:
    """Memory that it was not given is not there, though the GPU has it."""
    function = TrainFunction.of(f"{FILE}:evaluates_too_much")
    order = Order(
        number=0, config={**WHOLE, "extra": 6 * MiB}, function=function, folder=str(tmp_path), place=PLACES[0], cap=4 * MiB
    )  # fmt: skip
    end = run_trial(order, GoOn())
    assert end.state is TrialState.OUT_OF_MEMORY
    assert end.why.startswith("out of memory")
    assert legroom.VirtualGPU._active is None
