"""The memory gate: which configurations fit, are split or are rejected, and which configurations share an estimate."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

import legroom
from legroom.tuning.memory.admission import Admission, AdmissionVerdict, TrialGpu, virtual_gpus
from legroom.tuning.memory.gate import RANGE_ENDS, MemoryGate
from legroom.tuning.memory.tracer import CannotEstimate, TraceResult
from legroom.tuning.schedule.protocol import Action
from legroom.tuning.space.space import Config, read_space
from legroom.tuning.trial.function import TrainFunction
from legroom.tuning.trial.process import TrialTask, run_trial
from legroom.tuning.trial.records import TrialState
from legroom.tuning.trial.trial import ReportMessage
from legroom.units import MiB

FILE = Path(__file__).parents[1] / "tuned_functions.py"
NETWORK = TrainFunction.of(f"{FILE}:network")
SPACE = read_space({"width": {"int_log2": [4, 14]}, "batch_size": [64, 512], "lr": {"log": [1e-3, 1e-1]}})
GPUS = virtual_gpus("8MiB,24MiB")
UNSPLIT = {"width": 256, "batch_size": 64, "lr": 0.01}
SPLIT = {"width": 16384, "batch_size": 512, "lr": 0.01}
NEVER = {"width": 1 << 20, "batch_size": 64, "lr": 0.01}


@pytest.fixture(scope="module")
def gate() -> Iterator[MemoryGate]:
    gate = MemoryGate(TrainFunction.of(f"{FILE}:any_of_these"), GPUS, SPACE)
    yield gate
    gate.close()


def admit(gate: MemoryGate, config: Config) -> Admission:
    return gate.request(config).result(timeout=120)


class AlwaysContinue:
    def __init__(self) -> None:
        self.messages: list[ReportMessage] = []

    def report(self, message: ReportMessage) -> Action:
        self.messages.append(message)
        return Action.CONTINUE


def test_a_configuration_that_fits_is_not_split(gate: MemoryGate) -> None:
    admission = admit(gate, UNSPLIT)
    assert admission.verdict is AdmissionVerdict.FITS
    assert [admission.fits[gpu.index].micro_batch for gpu in GPUS] == [None, None]


@pytest.mark.slow
def test_a_split_configuration_runs_within_its_predicted_memory(gate: MemoryGate, tmp_path: Path) -> None:
    admission = admit(gate, SPLIT)
    assert admission.verdict is AdmissionVerdict.SPLIT
    assert admission.batch_size == 512
    small, large = admission.fits[0], admission.fits[1]
    assert small.micro_batch is not None
    assert large.micro_batch is not None
    assert small.micro_batch < large.micro_batch < 512
    channel = AlwaysContinue()
    order = TrialTask(
        number=0, config=SPLIT, function=NETWORK, folder=str(tmp_path), gpu=GPUS[1], cap=large.safe, micro_batch=large.micro_batch
    )  # fmt: skip
    end = run_trial(order, channel)
    assert end.state is TrialState.FINISHED
    assert end.ooms == 0
    assert end.actual_bytes is not None
    assert end.actual_bytes <= large.safe
    assert channel.messages[-1].micro_batch == large.micro_batch


def test_a_split_trial_has_the_losses_of_the_full_batch(tmp_path: Path) -> None:
    """The losses do not depend on the micro-batch size."""
    losses = []
    for micro_batch in (None, 40):
        channel = AlwaysContinue()
        order = TrialTask(
            number=0,
            config={"width": 64, "batch_size": 512, "lr": 0.1},
            function=NETWORK,
            folder=str(tmp_path),
            micro_batch=micro_batch,
        )
        assert run_trial(order, channel).state is TrialState.FINISHED
        losses.append([message.metrics["loss"] for message in channel.messages])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_the_reason_for_a_misfit_says_how_much_memory_is_missing(gate: MemoryGate) -> None:
    admission = admit(gate, NEVER)
    assert admission.verdict is AdmissionVerdict.NEVER
    assert admission.needed is not None
    assert admission.needed > max(gpu.memory for gpu in GPUS)
    assert "even in micro-batches of 1; 24.0 MiB is available" in admission.reason
    assert admission.shortage > 0


def test_a_traced_configuration_is_not_traced_again(gate: MemoryGate) -> None:
    first, again = admit(gate, UNSPLIT), admit(gate, dict(UNSPLIT))
    assert again.is_cached
    assert again.fits == first.fits


def test_estimates_are_shared_across_learning_rates_but_not_across_widths(gate: MemoryGate) -> None:
    admit(gate, UNSPLIT)
    assert not admit(gate, {**UNSPLIT, "lr": 0.03}).is_cached  # now both ends of lr are traced
    wait_for_background_traces(gate)
    assert admit(gate, {**UNSPLIT, "lr": 0.07}).is_cached
    assert not admit(gate, {**UNSPLIT, "width": 64}).is_cached


def test_a_resumed_trial_counts_the_state_that_it_loads_to_the_gpu(gate: MemoryGate, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint.pt"
    torch.save({"history": torch.zeros(MiB)}, checkpoint)
    sizes = {}
    for width, kind in ((128, "loads to the gpu"), (512, "loads to the host")):
        config = {**UNSPLIT, "width": width, "kind": kind}
        new = admit(gate, config)
        resumed = gate.request(config, str(checkpoint)).result(timeout=120)
        assert (new.verdict, resumed.verdict) == (AdmissionVerdict.FITS, AdmissionVerdict.FITS)
        assert not resumed.is_cached
        sizes[kind] = resumed.fits[1].predicted - new.fits[1].predicted
    assert sizes["loads to the gpu"] >= 4 * MiB
    assert sizes["loads to the host"] == 0


def test_a_function_without_a_guard_cannot_be_split(gate: MemoryGate) -> None:
    admission = admit(gate, {"width": 1 << 14, "batch_size": 512, "kind": "without guard"})
    assert admission.verdict is AdmissionVerdict.NEVER
    assert admission.reason.startswith("Needs")
    assert "cannot be split, because the function does not use `trial.guard`" in admission.reason


def test_a_function_that_needs_data_runs_alone_with_the_reason(gate: MemoryGate) -> None:
    admission = admit(gate, {**UNSPLIT, "kind": "needs data"})
    assert admission.verdict is AdmissionVerdict.UNKNOWN
    assert admission.fits[0].safe == 8 * MiB
    assert "the data are wrong" in admission.reason
    assert "The trial runs alone on a GPU" in admission.reason


class FakeTracer:
    """A fake tracer whose configurations need 1 MiB plus 1 MiB per sample, and another 1 MiB if `lr` is above 0.5."""

    def __init__(self, function: TrainFunction, gpus: Sequence[TrialGpu], ranks: int) -> None:
        self.gpus = list(gpus)
        self.traced: list[tuple[Config, int | None]] = []
        self.urgent: list[bool] = []

    def trace(
        self, config: Config, micro_batch: int | None, checkpoint: str | None = None, *, urgent: bool
    ) -> TraceResult:
        self.traced.append((config, micro_batch))
        self.urgent.append(urgent)
        if config["batch_size"] == 13:
            raise CannotEstimate("it failed")
        size = (1 + min(config["batch_size"], micro_batch or 999) + (config["lr"] > 0.5)) * MiB
        fits = tuple(size <= gpu.available for gpu in self.gpus)
        return TraceResult(
            reserved=size, safe=size, fits=fits, batch_size=config["batch_size"], min_micro_batch=1, can_split=True, request_hash=str(size), seconds=0.0
        )  # fmt: skip

    def kill(self) -> None: ...
    def close(self) -> None: ...


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryGate]:
    monkeypatch.setattr("legroom.tuning.memory.gate.Tracer", FakeTracer)
    gate = MemoryGate(
        NETWORK, virtual_gpus("10MiB"), read_space({"batch_size": [8, 16], "lr": {"uniform": [0, 1]}})
    )
    yield gate
    gate.close()


def traced(gate: MemoryGate) -> list[tuple[Config, int | None]]:
    tracer = gate._tracers[0]
    assert isinstance(tracer, FakeTracer)
    return tracer.traced


def test_the_largest_micro_batch_is_found_with_few_traces(quick: MemoryGate) -> None:
    admission = admit(quick, {"batch_size": 100, "lr": 0.1})
    assert admission.fits[0].micro_batch == 9
    assert len([one for one in traced(quick) if one[0]["lr"] == 0.1]) <= 4


def test_full_batches_are_traced_before_earlier_micro_batches(
    quick: MemoryGate,
) -> None:
    begin = threading.Event()
    quick._queue.put((-1, next(quick._order), begin.wait))
    large, small = {"batch_size": 100, "lr": 0.1}, {"batch_size": 4, "lr": 0.1}
    answers = [quick.request(large), quick.request(small)]
    begin.set()
    assert [answer.result(timeout=60).verdict for answer in answers] == [
        AdmissionVerdict.SPLIT,
        AdmissionVerdict.FITS,
    ]
    assert traced(quick)[:3] == [(large, None), (small, None), (large, 1)]


def test_a_parameter_that_changes_memory_at_one_end_of_its_range_is_not_ignored(quick: MemoryGate) -> None:
    admit(quick, {"batch_size": 4, "lr": 0.1})
    admit(quick, {"batch_size": 4, "lr": 0.2})
    wait_for_background_traces(quick)
    assert ({"batch_size": 4, "lr": 1.0}, None) in traced(quick)
    assert not admit(quick, {"batch_size": 4, "lr": 0.3}).is_cached


def test_the_ends_of_a_range_are_traced_once_that_can_save_traces(quick: MemoryGate) -> None:
    admit(quick, {"batch_size": 4, "lr": 0.1})
    admit(quick, {"batch_size": 5, "lr": 0.2})
    wait_for_background_traces(quick)
    assert len(traced(quick)) == 2
    admit(quick, {"batch_size": 5, "lr": 0.3})
    wait_for_background_traces(quick)
    assert [config["lr"] for config, _ in traced(quick)][2:] == [0.3, 0.0, 1.0]


def test_only_full_batches_are_urgent(quick: MemoryGate) -> None:
    begin = threading.Event()
    quick._queue.put((-1, next(quick._order), begin.wait))
    pending = quick.request({"batch_size": 100, "lr": 0.1})
    assert quick.has_unseen_configs
    begin.set()
    assert pending.result(timeout=60).verdict is AdmissionVerdict.SPLIT
    assert not quick.has_unseen_configs
    tracer = quick._tracers[0]
    assert isinstance(tracer, FakeTracer)
    assert tracer.urgent == [micro is None for _, micro in tracer.traced]


def wait_for_background_traces(gate: MemoryGate) -> None:
    """Wait until all queued traces are complete."""
    done = threading.Event()
    gate._queue.put((RANGE_ENDS + 1, next(gate._order), done.set))
    assert done.wait(timeout=60)


def test_an_out_of_memory_error_increases_later_estimates(quick: MemoryGate) -> None:
    config = {"batch_size": 4, "lr": 0.1}
    before = admit(quick, config).fits[0]
    quick.record_oom(config, before, needed=round(1.5 * before.predicted))
    after = admit(quick, config).fits[0]
    assert after.safe == before.safe + round(1.05 * round(1.5 * before.predicted)) - before.predicted
    assert (
        admit(quick, {"batch_size": 8, "lr": 0.1}).fits[0].micro_batch is not None
    )  # 9 MiB fits; 14 MiB does not


def test_a_correction_does_not_reject_a_configuration_that_fits_by_its_own_estimate(
    quick: MemoryGate,
) -> None:
    small, large = {"batch_size": 1, "lr": 0.1}, {"batch_size": 8, "lr": 0.1}
    quick.record_oom(small, admit(quick, small).fits[0], needed=11 * MiB)
    admission = admit(quick, large)
    assert admission.verdict is AdmissionVerdict.FITS
    assert admission.fits[0].safe == 10 * MiB  # a GPU to itself
    assert admission.fits[0].micro_batch is None


def test_without_an_estimate_nothing_is_corrected(quick: MemoryGate) -> None:
    unknown = {"batch_size": 13, "lr": 0.1}
    before = admit(quick, {"batch_size": 4, "lr": 0.1}).fits[0]
    quick.record_oom(unknown, admit(quick, unknown).fits[0], needed=10 * MiB)
    assert admit(quick, {"batch_size": 4, "lr": 0.1}).fits[0] == before


def test_a_failed_trace_affects_only_its_configuration(quick: MemoryGate) -> None:
    assert admit(quick, {"batch_size": 13, "lr": 0.1}).verdict is AdmissionVerdict.UNKNOWN
    assert admit(quick, {"batch_size": 4, "lr": 0.1}).verdict is AdmissionVerdict.FITS


class Others:
    """Other programs with a given memory use."""

    mebibytes = 0

    def used(self, gpu: TrialGpu) -> int:
        return self.mebibytes * MiB


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[MemoryGate, Others]]:
    """A gate for a GPU of 10 MiB that other programs use as well."""
    monkeypatch.setattr("legroom.tuning.memory.gate.Tracer", FakeTracer)
    others = Others()
    gate = MemoryGate(
        NETWORK,
        [TrialGpu(index=0, memory=10 * MiB)],
        read_space({"batch_size": [8]}),
        other_processes=others,  # type: ignore[arg-type]
    )
    yield gate, others
    gate.close()


def test_memory_of_other_programs_reduces_the_micro_batch(
    shared: tuple[MemoryGate, Others],
) -> None:
    gate, others = shared
    others.mebibytes = 4
    split = admit(gate, {"batch_size": 8, "lr": 0.1}).fits[0]
    assert (split.micro_batch, split.safe, split.used_by_others) == (4, 5 * MiB, 4 * MiB)
    others.mebibytes = 0
    whole = admit(gate, {"batch_size": 8, "lr": 0.1}).fits[0]
    assert (whole.micro_batch, whole.used_by_others) == (None, 0)


def test_a_batch_that_is_too_large_anyway_is_not_attributed_to_other_programs(
    shared: tuple[MemoryGate, Others],
) -> None:
    gate, others = shared
    others.mebibytes = 1
    assert admit(gate, {"batch_size": 100, "lr": 0.1}).fits[0].used_by_others == 0


def test_the_reason_for_a_misfit_mentions_other_programs(
    shared: tuple[MemoryGate, Others],
) -> None:
    gate, others = shared
    others.mebibytes = 9
    admission = admit(gate, {"batch_size": 8, "lr": 0.1})
    assert admission.verdict is AdmissionVerdict.NEVER
    assert admission.reason == (
        "Needs 2.0 MiB even in micro-batches of 1; 1.0 MiB is available (9.0 MiB is used by other programs)"
    )


def test_only_shape_parameters_of_the_user_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legroom.tuning.memory.gate.Tracer", FakeTracer)
    gate = MemoryGate(NETWORK, virtual_gpus("10MiB"), SPACE, shape_parameters=frozenset({"batch_size"}))
    admit(gate, {"batch_size": 4, "lr": 0.1})
    assert admit(gate, {"batch_size": 4, "lr": 0.9}).is_cached
    assert len(traced(gate)) == 1
    gate.close()


def test_a_trial_cannot_exceed_its_memory_limit(tmp_path: Path) -> None:
    """Memory beyond the limit cannot be allocated, even if it is free on the GPU."""
    function = TrainFunction.of(f"{FILE}:evaluates_too_much")
    order = TrialTask(
        number=0, config={**UNSPLIT, "extra": 6 * MiB}, function=function, folder=str(tmp_path), gpu=GPUS[0], cap=4 * MiB
    )  # fmt: skip
    end = run_trial(order, AlwaysContinue())
    assert end.state is TrialState.OUT_OF_MEMORY
    assert end.reason.startswith("Out of memory")
    assert legroom.VirtualGPU._active is None
