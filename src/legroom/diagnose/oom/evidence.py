"""The facts about an out-of-memory error that the advice rules use."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, prod
from typing import TYPE_CHECKING, Any

from legroom.diagnose.oom.batch_change import choose_setting
from legroom.diagnose.oom.recognize import classify
from legroom.diagnose.oom.static_evidence import evaluates_with_gradients, find_causes
from legroom.diagnose.report.device_memory import budget_of, free_at
from legroom.diagnose.report.growing_lines import Leak
from legroom.findings import Finding
from legroom.memory.allocator.settings import LARGE_SEGMENT
from legroom.memory.annotations import (
    BroadcastTensors,
    HandledError,
    LiveOptimizer,
    ModelCall,
    ProgramState,
)
from legroom.memory.event_base import Annotation, Category, Frame, Phase
from legroom.memory.events import Alloc, Holder, Oom, Step
from legroom.memory.state import State
from legroom.observe.source.batch_setting import BatchSetting
from legroom.observe.source.files import is_in_loop
from legroom.observe.source.forward_calls import ForwardCalls, forward_calls
from legroom.observe.source.late_zero_grad import keeps_gradients_until_backward
from legroom.observe.source.loaded_once import is_loaded_once
from legroom.observe.source.user_files import is_user_file

if TYPE_CHECKING:
    from legroom.diagnose.lint.finding import LintFinding

_BEFORE_ELEMENTWISE = (
    "aten.convolution",
    "aten.addmm",
    "aten.native_batch_norm",
    "aten.cudnn_batch_norm",
    "conv._conv_forward",  # names in a CUDA history
    "linear.forward",
    "functional.batch_norm",
)
MIN_PROGRESS = 1e-6
"""A smaller fraction of a forward pass can only come from a damaged capture."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All known facts about one out-of-memory error."""

    oom: Oom
    state: State
    allocations: Callable[[], Iterator[Alloc]]
    holders: Sequence[Holder] = ()
    leaks: Sequence[Leak] = ()
    progress: float | None = None
    """The approximate fraction of the forward pass that was complete, estimated from the modules that had started."""
    details: Sequence[Annotation] = ()
    arguments: Sequence[str] = ()
    steps: Sequence[Step] = ()
    peak: int = 0
    """The peak of the allocated bytes on the device before the failure."""
    peak_in: Callable[..., int] = lambda *phases: 0
    """Returns the peak in the given phases before the failure."""
    spills: bool = False
    expandable_segments: bool = False
    """Whether the run used the allocator setting `expandable_segments:True`."""
    traceback: str = ""
    """The traceback of the error, or of the error that followed."""
    earlier_oom: Oom | None = None
    """The preceding out-of-memory error of the run."""

    def live_bytes(self, *categories: Category) -> int:
        return sum(self._by_category.get(category, 0) for category in categories)

    def live(self, *categories: Category) -> list[Alloc]:
        return [each for each in self.state.live if each.category in categories]

    @property
    def budget(self) -> int:
        return budget_of(self.oom)

    @property
    def shortfall(self) -> int:
        """The number of bytes that were missing for the failed request.

        PyTorch may need a block that is larger than the request. If enough bytes were free for the request itself,
        the larger block did not fit.
        """
        free = free_at(self.oom)
        needed = self.oom.requested if self.oom.requested > free else block_of(self.oom)
        return max(needed - free, 0)

    @cached_property
    def program(self) -> ProgramState | None:
        return next((each for each in self.details if isinstance(each, ProgramState)), None)

    @property
    def model_call(self) -> Frame | None:
        """The user's line that called the model, if known."""
        program = self.program
        if program is None or not program.line:
            return None
        return Frame(program.file, program.line, program.function)

    @cached_property
    def optimizers(self) -> list[LiveOptimizer]:
        return [each for each in self.details if isinstance(each, LiveOptimizer)]

    @cached_property
    def model_calls(self) -> list[ModelCall]:
        """The forward passes with gradients since the last backward pass, oldest first."""
        return [each for each in self.details if isinstance(each, ModelCall)]

    @property
    def handled_error(self) -> HandledError | None:
        return next((each for each in self.details if isinstance(each, HandledError)), None)

    @property
    def broadcasts(self) -> list[BroadcastTensors]:
        return [each for each in self.details if isinstance(each, BroadcastTensors)]

    def causes(self, *codes: str) -> "list[LintFinding]":
        """Return what the linter finds in `files`, in the order of the codes."""
        return find_causes(self.files, codes)

    @cached_property
    def files(self) -> list[str]:
        """The user's files that allocated memory or called models."""
        frames = [self.model_call, self.oom.frame, *(each.frame for each in self.state.live)]
        files = [each.file for each in (*frames, *self.model_calls) if each is not None]
        files += re.findall(r'^  File "([^"]+)", line', self.traceback, re.M)
        return list(dict.fromkeys(each for each in files if is_user_file(each)))

    @cached_property
    def evaluates(self) -> bool:
        """True if the failure was in an evaluation, which needs no backward pass.

        Without evidence from earlier forward passes, only a failure with gradients disabled counts. A custom autograd
        function also runs with gradients disabled. In that case, however, the model is in training mode, and other
        operations have saved activations.
        """
        program = self.program
        if program is None or self.oom.phase in (Phase.BACKWARD, Phase.OPTIMIZER):
            return False
        if program.is_evaluation is not None:
            return program.is_evaluation
        if program.gradients_enabled:
            return self._linter_finds_evaluation
        # A checkpoint runs without gradients too, before any operation has saved activations.
        return program.is_training is False or not (self.optimizers or self.live_bytes(Category.ACTIVATION))

    @property
    def is_proven_evaluation(self) -> bool:
        """True if the failure was in an evaluation, and not only in a forward pass with gradients disabled."""
        if not self.evaluates or self.program is None:
            return False
        return self.program.is_evaluation is True or self.program.gradients_enabled

    @cached_property
    def _linter_finds_evaluation(self) -> bool:
        """True if the linter finds that the line that called the model evaluates it with gradients. The analysis is
        slow, so it runs only if the model is in evaluation mode, or if a training step is complete.
        """
        program, call = self.program, self.model_call
        if program is None or call is None or not (program.is_training is False or self.steps):
            return False
        return evaluates_with_gradients(call)

    @property
    def saves_nothing(self) -> bool:
        """True if the failure was in an evaluation with gradients disabled."""
        return self.evaluates and self.program is not None and not self.program.gradients_enabled

    @property
    def is_single_sample(self) -> bool:
        """True if the last batch contains one sample, so a smaller batch is not possible. Without a loader, the first
        dimension of the model's input must always have the size 1.
        """
        program = self.program
        if program is None:
            return False
        if program.batch_size is not None:
            setting = self._choose_setting(program.input_shape) if program.samples == 1 else None
            return program.samples == 1 and (setting is None or setting.value == 1)
        shapes = program.first_input_shape, program.input_shape
        return self._possible_setting is None and all(len(each) > 1 and each[0] == 1 for each in shapes)

    @cached_property
    def setting(self) -> BatchSetting | None:
        if self.has_other_input:
            return None
        return self._choose_setting(self.program.input_shape if self.program else ())

    @cached_property
    def _possible_setting(self) -> BatchSetting | None:
        return self._choose_setting(())

    def _choose_setting(self, shape: tuple[int, ...]) -> BatchSetting | None:
        size = self.program.batch_size if self.program else None
        return choose_setting(
            self.details, self.arguments, batch_size=size, evaluates=self.evaluates, shape=shape
        )

    @cached_property
    def has_other_input(self) -> bool:
        """True if no dimension of the model's last input matches the batch size, although a dimension of its first
        input does.

        For example, a GAN may generate 100 images to show its progress.
        """
        program, setting = self.program, self._possible_setting
        if program is None or setting is None or self.oom.phase is not Phase.FORWARD:
            return False
        sizes = [size for size in (setting.value, program.batch_size, program.samples) if size and size > 1]
        first, last = (
            [dimension for dimension in shape if dimension > 1]
            for shape in (program.first_input_shape, program.input_shape)
        )
        if not last or not set(first).intersection(sizes):
            return False
        return all(dimension % size and size % dimension for dimension in last for size in sizes)

    @cached_property
    def has_whole_input(self) -> bool:
        """True if the program has no batch size: no loader and no setting, and the model's input was loaded once,
        outside any loop. For example, a graph network may process one graph in every step.
        """
        program, inputs = self.program, self.live(Category.INPUT)
        if program is None or program.batch_size or self._possible_setting is not None or not inputs:
            return False
        shape = program.input_shape
        if shape != program.first_input_shape:
            return False
        sizes = [prod(shape) * element for element in (1, 2, 4, 8)]
        if shape and not any(each.bytes in sizes for each in inputs):
            return False
        largest = max(each.bytes for each in inputs)
        frames = {each.frame for each in inputs if each.bytes >= largest * 0.01}
        return all(frame is not None and is_loaded_once(frame) for frame in frames)

    @property
    def filled_fraction(self) -> float:
        """The number of samples in the last batch, divided by the batch size.

        The fraction is below 1 if the dataset is smaller than a batch.
        """
        program = self.program
        if program is None or not program.batch_size or not program.samples:
            return 1.0
        return min(program.samples / program.batch_size, 1.0)

    def is_earlier(self, allocation: Alloc) -> bool:
        """Return True if an allocation is from an earlier iteration.

        With several optimizers, the first optimizer step ends in the middle of an iteration.
        """
        return allocation.step < self.oom.step - (len(self.optimizers) > 1)

    @property
    def in_first_iteration(self) -> bool:
        """True in the first iteration and in an evaluation.

        In both cases, the memory that the rest of the run needs is unknown.
        """
        return self.evaluates or self.oom.step < max(len(self.optimizers), 1)

    @cached_property
    def creates_weights_in_forward(self) -> bool:
        """True if the first forward pass creates parameters, which the program may pass to an optimizer afterwards."""
        weights = self.live(Category.PARAMETER)
        return self.oom.step == 0 and any(each.phase is Phase.FORWARD for each in weights)

    def retained_by(self, leak: Leak) -> int:
        """Return the number of bytes that the variable of a leak retains, or the measured growth if the variable is
        unknown.
        """
        retained = [
            holder.bytes for holder in self.holders if stem_of(holder.path) == stem_of(leak.name) != ""
        ]
        transient = self.live_bytes(Category.ACTIVATION, Category.RESULT, Category.TEMPORARY, Category.INPUT)
        transient += self._bytes_of_late_parameters
        return min(max(leak.bytes, min(max(retained, default=0), transient)), self.oom.allocated)

    @cached_property
    def _bytes_of_late_parameters(self) -> int:
        """The size of the parameters that were created after the first step, such as copies of the weights."""
        return bytes_of([each for each in self.live(Category.PARAMETER) if each.step > 0])

    @cached_property
    def fixed(self) -> int:
        """The number of bytes that do not depend on the batch size.

        Gradients and optimizer states that the first step has yet to allocate are included. Copies of the weights that
        were created after the first step are not included.
        """
        parameters = self.live_bytes(Category.PARAMETER)
        gradients = self.live_bytes(Category.GRADIENT)
        trainable = sum(each.trainable_bytes for each in self.optimizers)
        if trainable and parameters - self._bytes_of_late_parameters >= trainable:
            parameters -= self._bytes_of_late_parameters
        if self.trains:
            gradients = max(gradients, min(parameters, trainable) if trainable else parameters)
        return (
            parameters
            + gradients
            + self.live_bytes(Category.OPTIMIZER_STATE)
            + self.missing_state
            + self.live_bytes(Category.BUFFER, Category.WORKSPACE)
        )

    @property
    def trains(self) -> bool:
        if self.evaluates:
            return False
        if self.optimizers and self.program is not None and self.program.is_training:
            return True
        return bool(self.live_bytes(Category.ACTIVATION) or self.live_bytes(Category.GRADIENT))

    @cached_property
    def missing_state(self) -> int:
        if not self.trains:
            return 0
        parameters = self.live_bytes(Category.PARAMETER)
        if self.optimizers:
            # A model may be split over several devices, and `state_bytes` is the total over all devices.
            state = min(sum(each.state_bytes for each in self.optimizers), 3 * parameters)
        else:
            state = 2 * parameters if self.oom.step == 0 else 0  # assume Adam: two moments per parameter
        return max(state - self.live_bytes(Category.OPTIMIZER_STATE), 0)

    @property
    def optimizer_state(self) -> int:
        """The size of the complete optimizer state in bytes, including the part that is not allocated yet."""
        return self.live_bytes(Category.OPTIMIZER_STATE) + self.missing_state

    @cached_property
    def resets_gradients_late(self) -> bool:
        """True if the gradients of an iteration are alive during the next forward pass."""
        oom = self.oom
        if oom.phase is not Phase.OPTIMIZER or len(self.optimizers) > 1 or oom.frame is None:
            return False
        return keeps_gradients_until_backward(oom.frame)

    def next_pass(self, *, resets_gradients_first: bool = False) -> int:
        """Return the expected peak of the next forward and backward pass after a failure in an optimizer step.

        In the first iteration, these passes ran without optimizer state.
        """
        forward, whole = self._peaks_outside_optimizer
        if self.oom.step >= max(len(self.optimizers), 1):
            return whole
        needed = whole
        if self.resets_gradients_late and not resets_gradients_first:
            needed = max(whole, forward + self.live_bytes(Category.GRADIENT))
        return needed + self.optimizer_state

    @cached_property
    def _peaks_outside_optimizer(self) -> tuple[int, int]:
        """The peak before the backward pass, and the peak of the forward and the backward pass."""
        forward = self.peak_in(Phase.FORWARD, Phase.OTHER)
        return forward, max(forward, self.peak_in(Phase.BACKWARD))

    @property
    def unusable(self) -> int:
        """The number of reserved bytes that are expected to stay unused.

        The value is the size of the fragments at the failure, but at least one large segment or a quarter of the budget,
        whichever is smaller.
        """
        return max(self.oom.fragmented, min(LARGE_SEGMENT, self.budget // 4))

    @cached_property
    def optimizer_temporaries(self) -> int:
        temporary = max((each.temporary_bytes for each in self.optimizers), default=0)
        return min(temporary, 3 * self.live_bytes(Category.PARAMETER)) if self.trains else 0

    @cached_property
    def scaling(self) -> int:
        """The number of bytes that scale with the batch size, including the rest of the forward pass.

        Whole datasets are not included.
        """
        so_far = self.scaling_so_far
        if self.oom.phase is Phase.OPTIMIZER:
            if len(self.optimizers) < 2 or not self.in_first_iteration:
                return so_far
            # The next iteration needs the freed activations again, in addition to the state.
            fixed = self.live_bytes(Category.PARAMETER, Category.BUFFER, Category.OPTIMIZER_STATE)
            return max(so_far, self.peak - fixed)
        if self.oom.phase is Phase.BACKWARD:
            return (
                so_far + self.oom.requested
            )  # the next backward operation reads this result and creates another result
        old = bytes_of(
            [each for each in self._transient if self.is_earlier(each) or self._is_from_earlier_call(each)]
        )
        total = old + in_whole_pass(so_far - old, self.step_progress)
        calls = self._forward_calls
        if calls is not None:
            # The backward pass starts in a model whose results may be small, and continues in the other models.
            largest = max((each.block_bytes for each in self.live(Category.ACTIVATION)), default=0)
            total += 2 * max(self.oom.requested, largest)
        elif self.trains and (self.progress or 0) > 0.75:
            total += (
                2 * self.oom.requested
            )  # the loss and its backward pass create results of the size of the output
        elif self.saves_nothing and self.oom.op in _BEFORE_ELEMENTWISE:
            total += (
                self.oom.requested
            )  # an elementwise operation usually follows, with a result of the same size
        total = max(total, so_far + self._rest_of_earlier_pass)
        if calls is not None:
            total = total * calls.most // calls.total
        elif self.trains and (len(self.optimizers) > 1 or self._gathers_outputs):
            total *= 2  # an iteration calls several models, or gathers the outputs of all replicas on one GPU
        is_like_last_step = not (self.has_varying_input or self.evaluates)
        earlier = self._bytes_of_last_step if is_like_last_step else None
        return total if earlier is None else max(so_far, min(total, earlier))

    def _is_from_earlier_call(self, allocation: Alloc) -> bool:
        """Return True if an allocation is from an earlier forward pass of this iteration, which is complete."""
        calls = self.model_calls
        if len(calls) < 2 or self._forward_calls is not None:
            return False
        return allocation.time < max(each.started for each in calls)

    @property
    def step_progress(self) -> float | None:
        """The approximate fraction of the forward passes before the next backward pass that was complete."""
        calls = self._forward_calls
        if calls is None or self.progress is None:
            return self.progress
        return (calls.before + self.progress) / calls.total

    @property
    def runs_several_forward_passes(self) -> bool:
        """True if a training step is known to run several forward passes before a backward pass."""
        return self._forward_calls is not None

    @cached_property
    def _forward_calls(self) -> ForwardCalls | None:
        """The forward passes of the training step, or None if they are unknown, or if there is only one."""
        if not self.trains or self.oom.phase is not Phase.FORWARD or self.model_call is None:
            return None
        calls = forward_calls(self.model_call)
        return calls if calls is not None and calls.most > 1 else None

    @property
    def _rest_of_earlier_pass(self) -> int:
        """The number of bytes that the rest of the forward pass and the start of the backward pass need.

        This number is known only if an evaluation ran the model before the first training step.
        """
        if not self.trains or self.steps:
            return 0
        call = max((each.started for each in self.model_calls), default=inf)
        results = [each for each in self.live(Category.RESULT, Category.TEMPORARY) if each.time >= call]
        started = {each.module for each in (*self.live(Category.ACTIVATION), *results)} | {
            self.oom.module,
            "",
        }
        sizes: dict[tuple[str, str], int] = {}
        for each in self.allocations():
            if each.module not in started and each.category in (Category.RESULT, Category.TEMPORARY):
                sizes.setdefault((each.module, each.op), each.block_bytes)
        return sum(sizes.values()) + 2 * max(sizes.values(), default=0)

    @property
    def fraction_for_training(self) -> float:
        """The fraction of the batch size with which the training fits that follows an evaluation.

        The training retains most results of the forward pass, which the evaluation frees.
        """
        parameters = self.live_bytes(Category.PARAMETER)
        fixed = parameters + self.live_bytes(Category.BUFFER)
        fixed += min(sum(each.trainable_bytes for each in self.optimizers), parameters)
        fixed += min(sum(each.state_bytes for each in self.optimizers), 3 * parameters)
        in_pass = self.oom.requested
        for each in self.allocations():
            if each.category is Category.INPUT or in_pass > 64 * self.budget:
                break
            in_pass += each.block_bytes
        available = max(self.budget - fixed - self.unusable, 0)
        return available * (self.progress or 0.75) / max(in_pass, 1)

    @property
    def scaling_so_far(self) -> int:
        """The number of bytes that scale with the batch size, including the failed request."""
        return self.scaling_in_use + (0 if self.oom.phase is Phase.OPTIMIZER else self.oom.requested)

    @property
    def scaling_in_use(self) -> int:
        return bytes_of(self._transient)

    @cached_property
    def _transient(self) -> list[Alloc]:
        transient = self.live(Category.ACTIVATION, Category.INPUT, Category.RESULT, Category.TEMPORARY)
        if self.oom.phase is Phase.OPTIMIZER:
            transient = [each for each in transient if each.phase is not Phase.OPTIMIZER]
        return [each for each in transient if each not in self.datasets]

    @cached_property
    def datasets(self) -> list[Alloc]:
        """Inputs that are too large to be a batch."""
        large = [each for each in self.live(Category.INPUT) if each.block_bytes >= self.budget * 0.25]
        program = self.program
        if program is None or not program.batch_size:
            return large
        # A loader returns batches, so a tensor that a loop creates, or that the model receives, is a batch.
        sizes = [prod(program.input_shape) * element for element in (1, 2, 4, 8) if program.input_shape]
        return [each for each in large if each.bytes not in sizes and not _is_created_in_loop(each)]

    @property
    def is_moving_batch(self) -> bool:
        """True if the program failed to move a batch of its loader to the device, when the model was already there."""
        program = self.program
        is_copy = self.oom.op in ("aten._to_copy", "aten.copy_", "aten.clone", "aten.empty_strided")
        is_complete = bool(self.steps or self.optimizers)
        return (
            self.oom.phase is Phase.OTHER
            and is_copy
            and is_complete
            and program is not None
            and bool(program.batch_size)
        )

    @property
    def has_varying_input(self) -> bool:
        """True if the model's input is larger than its first input, although the batch size is the same. For example,
        the samples may have different lengths.
        """
        program = self.program
        if program is None or self.evaluates or not self.steps or not program.first_input_shape:
            return False
        first, last = program.first_input_shape, program.input_shape
        return len(first) == len(last) and first[0] >= last[0] and prod(last) > prod(first) * 1.1

    @property
    def is_after_training(self) -> bool:
        """True if an operation failed that records a graph, but that belongs to no forward pass of a model. For
        example, the program may compute statistics of the weights after the last step.
        """
        if self.oom.phase is not Phase.FORWARD or not self.steps or not self.model_calls:
            return False
        called = max(each.started for each in self.model_calls)
        return any(each.phase is Phase.BACKWARD and each.time > called for each in self.state.live)

    @property
    def is_unfinished(self) -> bool:
        return self.oom.phase not in (Phase.BACKWARD, Phase.OPTIMIZER)

    @property
    def _gathers_outputs(self) -> bool:
        return any(holder.path.endswith(" (DataParallel)") for holder in self.holders)

    @property
    def _bytes_of_last_step(self) -> int | None:
        """The bytes that the last complete step used in addition to the weights, or None before the first step ends."""
        if not self.steps:
            return None
        start = self.live_bytes(Category.PARAMETER, Category.BUFFER) + bytes_of(self.datasets)
        if len(self.steps) > 1:
            start = self.steps[-2].allocated
        return max(self.steps[-1].peak_allocated - start, 0)

    @cached_property
    def missing(self) -> int:
        """The number of bytes by which the whole step is expected to exceed the device's memory."""
        if self.oom.phase is Phase.OPTIMIZER:
            return max(self.shortfall, self.oom.allocated + self._rest_of_optimizer_step - self.budget)
        later = self.missing_state
        if self.oom.phase is Phase.FORWARD or (self.oom.phase is Phase.BACKWARD and self._starts_backward):
            later += self.scaling - self.scaling_so_far
        return max(self.shortfall, self.oom.allocated + self.oom.requested + later - self.budget)

    @property
    def _rest_of_optimizer_step(self) -> int:
        """The number of bytes that the optimizer step still had to allocate, including the failed request."""
        temporary = [each for each in self.live(Category.TEMPORARY) if each.phase is Phase.OPTIMIZER]
        temporaries = max(self.optimizer_temporaries - bytes_of(temporary), 0)
        if not self.missing_state:
            return max(self.oom.requested, temporaries)
        state = max(self.oom.requested, self.missing_state)
        # With several optimizers, the state of the next optimizer is allocated after the temporaries are freed.
        return max(state, temporaries) if len(self.optimizers) > 1 else state + temporaries

    @property
    def _starts_backward(self) -> bool:
        """True if no live block from the backward pass has at least half the requested size. The backward pass has
        then probably just started.
        """
        size = self.oom.requested // 2
        return not any(each.phase is Phase.BACKWARD and each.block_bytes >= size for each in self.state.live)

    @property
    def fitted_before(self) -> bool:
        """True if a step with the peak of the last step would fit.

        If only one step is complete, the optimizer state is added, because it is usually allocated after the peak of
        the first step.
        """
        if not self.steps:
            return False
        state = self.live_bytes(Category.OPTIMIZER_STATE) if len(self.steps) == 1 else 0
        return self.steps[-1].peak_allocated + state <= self.budget

    @cached_property
    def _by_category(self) -> dict[Category, int]:
        return self.state.by_category()


Rule = Callable[[Evidence], Iterator[Finding]]


def in_whole_pass(size: int, progress: float | None) -> int:
    """Return the expected size at the end of a forward pass, from the size after a fraction of the pass."""
    return int(size / max(progress or 1.0, MIN_PROGRESS))


def block_of(oom: Oom) -> int:
    """Return the size of the block that PyTorch tried to allocate, which can be larger than the request."""
    return max(classify(oom.message).requested or 0, oom.requested)


def _is_created_in_loop(allocation: Alloc) -> bool:
    frame = allocation.frame
    return frame is not None and is_in_loop(frame.file, frame.line, itself=False)


def stem_of(name: str) -> str:
    """Return the name of a container, such as `history` for `self.history["loss"]` or
    `trainer.history (dict, 2 items)`.
    """
    return name.partition(" ")[0].partition("[")[0].rpartition(".")[2]


def bytes_of(allocations: Sequence[Alloc]) -> int:
    return sum(each.block_bytes for each in allocations)


def heaviest_frame(allocations: Sequence[Alloc]) -> Frame | None:
    sizes: Counter[Frame] = Counter()
    for each in allocations:
        if each.frame is not None:
            sizes[each.frame] += each.block_bytes
    return sizes.most_common(1)[0][0] if sizes else None


def constructor(optimizers: Sequence[LiveOptimizer]) -> dict[str, Any]:
    """Return the line that created the first of these optimizers. The result is empty if the line is unknown."""
    return next(({"file": each.file, "line": each.line} for each in optimizers if each.file), {})


def location(frame: Frame | None) -> dict[str, Any]:
    return {"file": frame.file, "line": frame.line} if frame else {}
