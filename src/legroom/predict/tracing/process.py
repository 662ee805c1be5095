"""The process in which an unmodified script is traced.

The process runs the script up to its first batch (or the first forward pass, if the script has no DataLoader), and then
waits for requests. For each request, a fork continues the script from the first batch, with a different batch size or
with memory-saving options applied. At most one fork per CPU core runs at a time. A fork that has finished its steps
writes its trace and exits immediately. No later code in the script runs, such as checkpoints, `finally` blocks or exit
handlers. On systems that cannot fork, the process itself continues the script for a single request (see
`workers.spawned`).

Requests and replies are messages on a pipe. A trace is a capture file.
"""

import contextlib
import functools
import os
import signal
import sys
import time
import traceback
import weakref
from collections.abc import Iterable, Mapping
from importlib.machinery import SourceFileLoader
from multiprocessing.connection import Connection
from pathlib import Path
from textwrap import shorten
from typing import Any, NoReturn

import psutil
import torch
import torch._dynamo  # imported once for all workers, because creating an optimizer imports it
from torch.utils.data import DataLoader
from torch.utils.data import dataloader as _dataloader

from legroom.gpus.machine import processors
from legroom.memory.annotations import ExitReason
from legroom.memory.capture.capture import CaptureWriter
from legroom.memory.event_base import Frame
from legroom.memory.events import Alloc, discard
from legroom.observe.dispatch.attribution import user_frame
from legroom.observe.dispatch.storages import tensors_in
from legroom.observe.fake.hidden_gpus import hide_real_gpus
from legroom.observe.graph_traces import before_graph_traces, is_tracing_graph
from legroom.observe.script import Script, execute, installed
from legroom.observe.source.batch_argument import EVALUATION_RANK
from legroom.observe.source.batch_setting import BatchSetting
from legroom.observe.source.script_settings import ScriptSettings
from legroom.observe.virtual.gpu import VirtualGPU
from legroom.predict.options.apply import applied
from legroom.predict.options.names import MemoryOption
from legroom.predict.sandbox.checkpoints import checkpoints_in, no_model_saved
from legroom.predict.sandbox.sandbox import Sandbox
from legroom.predict.tracing.background_threads import background_threads, restart
from legroom.predict.tracing.evaluations import ExecutedLines, untraced_evaluation
from legroom.predict.tracing.own_failures import fails_without_legroom
from legroom.predict.tracing.pause_gc import gc_paused_during_imports, instances_of
from legroom.predict.tracing.resize import (
    batch_size_of,
    full_batch_size,
    resized,
    sample_list_depth,
    sample_shapes,
)
from legroom.predict.tracing.running_line import report_running_line
from legroom.predict.tracing.started_processes import (
    first_spawned_rank_in_this_process,
    started_processes_noted,
)
from legroom.predict.tracing.terminal import report_terminal_size
from legroom.predict.tracing.time_limit import TimeLimit
from legroom.predict.tracing.trace import GROWTH_STEPS, Trace
from legroom.predict.tracing.virtual_trace import finish, make_device, needs_arithmetic, needs_values
from legroom.predict.tracing.workers.forked import MAX_TRACES
from legroom.processes import can_fork, exit_with_parent

MAX_ERROR_LENGTH = 300
"""The maximum length of the script's error message in a report. The complete message is in the output of the
script."""
MAX_VALIDATION = 10.0
"""The maximum processor time in seconds for tracing the first validation batches after the training steps."""
VALIDATION_BATCHES = 2
"""The number of validation batches to trace. The second batch needs more memory than the first if the results of the
first batch, such as the autograd graph of its loss, are freed only after the second forward pass.
"""
MAX_EVALUATION = 3.0
"""The maximum time in seconds for an evaluation that runs before training. A longer evaluation is stopped, because the
estimate covers only training.
"""
MAX_TRACING = {"fake": 60.0, "cpu": 120.0}
"""The maximum time in seconds for a trace that has completed a training step, or that has no optimizer. Tracing with
real values takes longer.
"""
MORE_STEPS, MAX_WAIT_FOR_OPTIMIZERS = 8, 10.0
"""`MORE_STEPS` is the maximum number of additional steps that are traced until every optimizer has stepped twice.
`MAX_WAIT_FOR_OPTIMIZERS` is the maximum time in seconds to wait for an optimizer that has not stepped yet.
"""
MAX_WAIT_FOR_GROWTH = 10.0
"""The maximum time in seconds after which another step is traced because memory grows."""
MAX_FIRST_STEP = 180.0
"""The maximum time in seconds for a trace that has not completed a training step."""


class TracingProcess:
    def __init__(self, job: dict[str, Any], pipe: "Connection[Any, Any]") -> None:
        hide_real_gpus()
        report_running_line(job["folder"])
        report_terminal_size()
        self._folder: str = job["folder"]
        self._sandbox = Sandbox(Path(self._folder))
        self.script: Script = job["script"]
        _apply_edits(job["edits"])
        self._settings = ScriptSettings(self.script.arguments)
        self._settings.follow()
        self._first_shapes: list[tuple[int, ...]] = []
        """The shapes of the arguments of the first model call, if the script has no loader."""
        self.steps: int = job["steps"]
        self.trace = Trace(gpu=job["gpu"], mode=job["mode"])
        self.device: VirtualGPU = make_device(
            self.trace.gpu, self.trace.mode, self.trace.events.append, job["gpus"]
        )
        self._local_rank: int = job["local_rank"]
        self._pipe = pipe
        self._waiting = True
        self._with_uncertainty = True
        self._path: str | None = None
        self._batch_size: int | None = None
        self._loader: Any = None
        self._batches = 0
        self._full_size: int | None = None
        """The number of samples in a full training batch, or None if it is unknown."""
        self._sample_shapes: tuple[torch.Size, ...] | None = None
        self._list_depth: int | None = None
        """The depth of the lists of samples in a training batch (see `sample_list_depth`)."""
        self._evaluation_ends: float | None = None
        """The time at which to stop an evaluation that runs before the training (see `_training_follows`)."""
        self._resize_to: int | None = None
        self._validation_starts: int | None = None
        """The number of recorded events at the end of the training steps, if the trace continues with the validation."""
        self._validation_batches = 0
        self._first_validation_batch = 0
        """The number of recorded events at the start of the first validation batch."""
        self._executed = ExecutedLines()
        self._max_first_step: float = min(MAX_FIRST_STEP, job["seconds"] or MAX_FIRST_STEP)
        self._time_limit = TimeLimit()
        self._started = 0.0
        self._first_batch = 0
        self._is_own_failure = True
        """True if an error is certainly an error of the script itself (see `own_failures`)."""
        self._imports = contextlib.ExitStack()
        """Contexts that are active during imports. The contexts are closed at the first batch, because few imports
        happen later.
        """
        self._options = contextlib.ExitStack()
        """The options of a fork. The options are never reverted, because the fork exits with the options applied."""

    def run(self) -> NoReturn:
        torch.set_num_threads(1)  # a fork does not inherit threads
        with contextlib.ExitStack() as stack:
            self._imports.enter_context(gc_paused_during_imports(self._device_is_unused))
            stack.enter_context(self._loaders_patched())
            stack.enter_context(self.device)
            self._count_steps()
            self._stop_at_first_call()
            self._end_if_data_is_needed()
            stack.enter_context(first_spawned_rank_in_this_process(Path(self._folder), self._note))
            stack.enter_context(started_processes_noted(self._note))
            stack.enter_context(checkpoints_in(self._sandbox, has_data=self.trace.mode == "cpu"))
            self._note_compile()
            self._end_if_model_is_traced()
            self._executed.record()
            with installed(self.script):
                outcome = execute(self.script, uncaught=self._uncaught)
            if outcome.reason is ExitReason.EXITED:
                self._is_own_failure = self._fails_without_legroom(None)
            result = "finished" if outcome.exit_code == 0 else "failed"
            error = f"{outcome.traceback}{outcome.error}"
            if result == "failed" and self.trace.mode == "fake" and _NO_DATA in error:
                result = "needs data"
                error = f"compiled code reads a tensor, {outcome.traceback.strip(' ,')}"
            self._end(result, error, outcome.exit_code)

    def _uncaught(self, error: BaseException, hooked: bool) -> tuple[str, str]:
        self._is_own_failure = self._fails_without_legroom(error)
        return _describe(error, hooked)

    def _fails_without_legroom(self, error: BaseException | None) -> bool:
        return self.trace.mode == "cpu" or fails_without_legroom(
            error, device_used=not self._device_is_unused()
        )

    def _device_is_unused(self) -> bool:
        return not any(device.allocator.peak_reserved for device in self.device.devices)

    # --- requests

    def _serve(self) -> None:
        """Wait for requests at the first batch. The method returns only in forks, which continue the script."""
        if not self._waiting:
            return
        self._imports.close()
        self._pipe.send(
            {
                "event": "ready", "batch_size": self._batch_size, "shapes": self._first_shapes,
                "settings": self._batch_settings(),
            }
        )  # fmt: skip
        if not can_fork():
            try:
                self._continue(self._pipe.recv())
            except (EOFError, OSError):
                os._exit(0)
            return
        most = min(MAX_TRACES, processors())
        waiting: list[dict[str, Any]] = []
        running: dict[int, int] = {}
        while True:
            try:
                if self._pipe.poll(0.02 if running else None):
                    waiting.append(self._pipe.recv())
            except (EOFError, OSError):
                self._exit(running)
            for child in [child for child in running if os.waitpid(child, os.WNOHANG)[0]]:
                self._pipe.send({"event": "done", "number": running.pop(child)})
            while waiting and len(running) < most:
                waiting.sort(key=lambda request: not request["urgent"])
                request = waiting.pop(0)
                threads = background_threads()
                child = os.fork()
                if child == 0:
                    exit_with_parent()
                    restart(threads)
                    self._continue(request)
                    return
                running[child] = request["number"]
                self._pipe.send({"event": "started", "number": request["number"], "pid": child})

    def _batch_settings(self) -> list[BatchSetting]:
        leading = self._batch_size or next((shape[0] for shape in self._first_shapes if shape), None)
        try:
            return self._settings.candidates(leading)
        except Exception:  # objects of the script may raise any exception
            return []

    @functools.cached_property
    def _has_evaluation_setting(self) -> bool:
        """Whether the batch size of the evaluation has its own setting, with the same value as that of the training."""
        return any(
            each.rank >= EVALUATION_RANK and each.value == self._full_size for each in self._batch_settings()
        )

    def _continue(self, request: dict[str, Any]) -> None:
        self._waiting = False
        # The events of a fork are discarded by default.
        self.device.recorder.allocations.sink = self.trace.events.append
        self._path = request["path"]
        self._batch_size = request["batch_size"] or self._batch_size
        self._resize_to = request["batch_size"]
        self._with_uncertainty = request["with_uncertainty"]
        self._started, self._first_batch = time.monotonic(), len(self.trace.events)
        self._limit_time(min(MAX_TRACING[self.trace.mode], self._max_first_step))
        no_model_saved()
        if can_fork():
            self._sandbox.continue_in_fork()
        options: list[MemoryOption] = request["options"]
        if options:
            self._options.enter_context(
                applied(*options, no_effect=lambda: self._end("failed", "the option has no effect"))
            )
            self._end_on_error()

    def _limit_time(self, seconds: float) -> None:
        self._time_limit.set(self._time_is_up, seconds)

    def _time_is_up(self) -> None:
        """End the trace after the completed steps, for example because a step ends with a long `generate()`."""
        clock, seconds = self.device.recorder.clock, time.monotonic() - self._started
        if not clock.step and clock.has_optimizer() and seconds < self._max_first_step:
            self._limit_time(self._max_first_step - seconds)
            return
        where = _where().strip(" ,")
        at = f" (stopped at {where})" if where else ""
        if clock.step and clock.trains:
            self.trace.first_batch = self._first_batch if clock.step == 1 else None
            self._note(
                f"Step {clock.step + 1} did not finish within {seconds:.0f} seconds{at}, and the rest of the "
                "step was not traced. "
                f"The estimate is based on {clock.step} complete training {'step' if clock.step == 1 else 'steps'}"
            )
        else:
            self.trace.is_partial = True
            self._note(
                f"The script did not complete a step within {seconds:.0f} seconds{at}. The estimate covers "
                "only the part that was traced. The rest of the step may need more memory"
            )
        self._end("stopped")

    def _exit(self, running: Iterable[int]) -> NoReturn:
        for child in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        os._exit(0)

    # --- following the script

    @contextlib.contextmanager
    def _loaders_patched(self) -> Any:
        plain_iter, plain_next = DataLoader.__iter__, _dataloader._BaseDataLoaderIter.__next__

        def iterate(loader: Any) -> Any:
            if (
                not can_fork()
            ):  # workers would be new processes, which run the script again and outside the sandbox
                loader.num_workers = loader.timeout = 0
            evaluates = not torch.is_grad_enabled()
            if self._validation_starts is not None and loader is self._loader and not evaluates:
                self._end("traced")  # the next epoch
            if self._loader is None or (self._is_before_training() and not evaluates):
                self._loader, self._batches, self._sample_shapes = loader, 0, None
                self._full_size = full_batch_size(loader)
                self._batch_size = self._resize_to or self._full_size
                self._serve()
            iterator: Any = plain_iter(loader)
            iterator._legroom_loader, iterator._legroom_evaluates = weakref.ref(loader), evaluates
            iterator._legroom_batch_size = full_batch_size(loader)  # the loop may keep only the iterator
            return iterator

        def next_batch(iterator: Any) -> Any:
            evaluates = getattr(iterator, "_legroom_evaluates", False)
            if evaluates and self._evaluation_is_long():
                raise StopIteration
            is_training = getattr(iterator, "_legroom_loader", _no_loader)() is self._loader and not (
                evaluates and self._validation_starts is not None
            )
            if self._validation_starts is not None:
                if is_training:  # end the epoch, so that the script continues with its validation
                    raise StopIteration
                if self._validation_batches == VALIDATION_BATCHES:
                    self._end_validation_loop()
                self._first_validation_batch = self._first_validation_batch or len(self.trace.events)
                self._validation_batches += 1
            batch = plain_next(iterator)
            if is_training:
                self._batches += 1
                batch = self._resized(batch)
                self._compare_shapes(sample_shapes(batch))
            elif self._validation_starts is not None and self._resize_to is not None:
                size = getattr(iterator, "_legroom_batch_size", None)
                # The same setting usually determines two equal batch sizes.
                if size == self._full_size not in (None, 1) and not self._has_evaluation_setting:
                    batch = resized(batch, self._resize_to, sample_list_depth(batch, size))
            return batch

        DataLoader.__iter__ = iterate  # type: ignore[method-assign]
        _dataloader._BaseDataLoaderIter.__next__ = next_batch  # type: ignore[method-assign,assignment]
        yield
        DataLoader.__iter__ = plain_iter  # type: ignore[method-assign]
        _dataloader._BaseDataLoaderIter.__next__ = plain_next  # type: ignore[method-assign]

    def _resized(self, batch: Any) -> Any:
        """Return a training batch with the requested number of samples. A partial batch at the end of an epoch gets as
        many samples as a full batch, because the next epoch starts with a full batch.
        """
        if self._batches == 1:
            self._list_depth = sample_list_depth(batch, self._full_size)
        depth = self._list_depth
        size = batch_size_of(batch, depth)
        if self._resize_to is not None:
            batch = resized(batch, self._resize_to, depth)
            self._batch_size = batch_size_of(batch, depth) or self._batch_size
        elif self._batches == 1:
            if size is not None and self._full_size is not None and size < self._full_size:
                self._note(
                    f"The first batch has only {size} samples, but the batch size is {self._full_size}. The estimate "
                    f"is for batches of {size} samples"
                )
            self._batch_size = size or self._batch_size
        elif size is not None and self._batch_size is not None and size < self._batch_size == self._full_size:
            batch = resized(batch, self._full_size, depth)
        else:
            self._batch_size = max(size or 0, self._batch_size or 0) or None
        return batch

    def _end_validation_loop(self) -> NoReturn:
        if torch.is_grad_enabled():
            self._note(
                f"The validation{_where().replace(', ', ' at ', 1)} runs with gradients enabled. "
                "Wrap it in `torch.no_grad()` to reduce its memory use"
            )
        self._end("traced")

    def _compare_shapes(self, shapes: tuple[torch.Size, ...]) -> None:
        if self._sample_shapes not in (None, shapes):
            self._note(
                "Batches differ in shape. Batches that are larger than the traced batches need more memory. "
                f"Use `--steps {10 * self.steps}` to trace more batches"
            )
        self._sample_shapes = shapes

    def _note(self, text: str) -> None:
        if text not in self.trace.notes:
            self.trace.notes.append(text)

    def _training_follows(self) -> bool:
        """Return whether the training has not started yet: an optimizer exists, but no batch was used for training.

        The batches so far were prefetched or used for an evaluation. Therefore the step count starts again, and the
        next loader is treated as the training loader.
        """
        clock = self.device.recorder.clock
        if clock.trains or not clock.has_optimizer():
            return False
        clock.trains, clock.step = True, 0  # from now on, a batch does not count as a step
        self._evaluation_ends = time.monotonic() + MAX_EVALUATION
        return True

    def _optimizers_follow(self, step: int) -> bool:
        """Return whether more steps must be traced because an optimizer stepped for the first time in the last step, or
        has not stepped yet. Programs with several optimizers, such as a GAN, may need more steps.

        The last traced step must not allocate optimizer state, because the replay repeats this step.
        """
        clock = self.device.recorder.clock
        if step + 1 >= self.steps + MORE_STEPS or not clock.trains:
            return False
        if not clock.is_settled:
            return True
        if time.monotonic() > self._started + MAX_WAIT_FOR_OPTIMIZERS:
            return False
        stepped = {id(each) for optimizer in clock.optimizers for each in _parameters(optimizer())}
        # A wrapper (accelerate) never steps itself, but it has the parameters of the optimizer inside it.
        return any(
            id(each) not in stepped
            for optimizer in instances_of(torch.optim.Optimizer)
            for each in _parameters(optimizer)
        )

    def _may_grow(self, step: int) -> bool:
        """Return whether more steps must be traced, because the last step left more memory than the step before."""
        return (
            step + 1 < GROWTH_STEPS
            and self.steps > 1
            and time.monotonic() < self._started + MAX_WAIT_FOR_GROWTH
            and self.trace.has_grown()
        )

    def _is_before_training(self) -> bool:
        return self._evaluation_ends is not None and self.device.recorder.clock.step == 0

    def _evaluation_is_long(self) -> bool:
        if (
            self._evaluation_ends is None
            or not self._is_before_training()
            or time.monotonic() < self._evaluation_ends
        ):
            return False
        self._note(f"An evaluation before training was stopped after {MAX_EVALUATION:.0f} seconds")
        return True

    def _stop_at_first_call(self) -> None:
        """Wait for requests at the first call to a model, if no loader was iterated before. The process waits before
        the call and not in a hook of the call, because hooks that an option adds must also run for this call.
        """
        plain_call = torch.nn.Module.__call__

        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            if is_tracing_graph():
                return plain_call(module, *args, **kwargs)
            torch.nn.Module.__call__ = plain_call  # type: ignore[method-assign]
            if self._loader is None:
                self._loader = module  # so later loaders are not treated as the training loader
                self._first_shapes = [tuple(tensor.shape) for tensor in tensors_in((args, kwargs))]
                self._serve()
            return module(*args, **kwargs)

        torch.nn.Module.__call__ = call  # type: ignore[method-assign]

    def _note_compile(self) -> None:
        plain_compile = torch.compile

        @functools.wraps(plain_compile)
        def compile(*args: Any, **kwargs: Any) -> Any:
            self._note("The model is compiled (`torch.compile`). The estimate is for eager mode")
            return plain_compile(*args, **kwargs)

        torch.compile = compile

    def _end_if_model_is_traced(self) -> None:
        """Exit the process if the script traces a model, for example to draw its graph. torch cannot trace a model with
        fake tensors.
        """
        if self.trace.mode == "fake":
            before_graph_traces(lambda: self._end("needs data", f"torch.jit.trace{_where()}", 1))

    def _end_on_error(self) -> None:
        """Exit the process if the model fails. An option may have caused the error, so the script must not handle it."""

        def ends_on_error(function: Any) -> Any:
            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                try:
                    return function(*args, **kwargs)
                except Exception as error:
                    self._end("failed", _describe(error, False)[0])

            return call

        torch.nn.Module.__call__ = ends_on_error(torch.nn.Module.__call__)  # type: ignore[method-assign]
        torch.Tensor.backward = ends_on_error(torch.Tensor.backward)  # type: ignore[method-assign]

    def _end_if_data_is_needed(self) -> None:
        """Exit the process if the script needs values that a trace does not have. The script then runs again with real
        values.
        """
        fake_tensors = self.device.fake_tensors
        if fake_tensors is None:
            return
        plain_run = fake_tensors.run

        def run(func: Any, args: Any, kwargs: dict[str, Any], to_device: bool) -> Any:
            try:
                return plain_run(func, args, kwargs, to_device)
            except Exception as error:
                if not needs_arithmetic(error):
                    raise
                reason = "" if needs_values(error) else ": it has no fake implementation"
                self._end("needs data", f"{func.overloadpacket}{_where()}{reason}", 1)

        fake_tensors.run = run  # type: ignore[method-assign]

    def _count_steps(self) -> None:
        clock = self.device.recorder.clock
        clock.has_optimizer = lambda: any(instances_of(torch.optim.Optimizer))
        plain_on_step_end = clock.on_step_end

        def on_step_end(step: int, seconds: float) -> None:
            if plain_on_step_end is not None:
                plain_on_step_end(step, seconds)
            if (
                step + 1 >= self.steps
                and not self._training_follows()
                and not self._optimizers_follow(step)
                and not self._may_grow(step)
            ):
                self._training_traced()

        clock.on_step_end = on_step_end

    def _training_traced(self) -> None:
        """Stop tracing training steps. If a DataLoader provides the batches, validation batches are also traced."""
        is_fed = self.device.recorder.clock.trains and isinstance(self._loader, DataLoader)
        if self._validation_batches:  # a new loader for the next epoch: these batches are for training
            del self.trace.events[self._first_validation_batch :]
            self._validation_batches = 0
            self.device.recorder.clock.step -= 1
        if self._validation_starts is not None or not is_fed:
            self._end("traced")
        self._validation_starts = len(self.trace.events)
        self._time_limit.set(
            lambda: self._end("traced"), 6 * MAX_VALIDATION, processor_seconds=MAX_VALIDATION
        )

    def _traced_device(self) -> int:
        """Return the index of the device whose memory is estimated: the device of the local rank, if the script uses
        it.
        """
        reserved = [device.allocator.peak_reserved for device in self.device.devices]
        used = max(range(len(reserved)), key=reserved.__getitem__)
        if reserved[self._local_rank] or not reserved[used]:
            return self._local_rank
        self._note(
            f"A rank uses cuda:{used}, which is not its own GPU. "
            'Call `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` at the start of the script'
        )
        return used

    def _end_validation(self, outcome: str, error: str) -> None:
        """End the traced validation. If the validation allocated device memory, its events stay in the trace. An error
        in the validation does not affect the estimate for training.
        """
        start = self._validation_starts
        if any(type(event) is Alloc for event in self.trace.events[start:]):
            self.trace.validation_starts = start
            if outcome in ("failed", "needs data"):
                what = "validation loop" if self._validation_batches else "code after the training steps"
                self._note(f"Tracing the {what} failed ({error})")
        else:
            del self.trace.events[start:]

    def _end(self, outcome: str, error: str = "", exit_code: int = 0) -> NoReturn:
        """Write the trace and exit, without running any more of the script's code.

        `outcome` is `traced` (all steps), `stopped` (after the time limit), `finished` (the script ended), `failed`
        or `needs data`.
        """
        self._time_limit.cancel()
        ran_to_its_end = outcome == "finished"
        if self._validation_starts is not None:
            self._end_validation(outcome, error)
            outcome, error, exit_code = "traced", "", 0
        device = self._traced_device()
        self.trace.keep_device(device)
        trace = finish(self.trace, self.device, with_uncertainty=self._with_uncertainty)
        trace.batch_size = self._batch_size
        trace.is_finished = outcome == "finished"
        trace.trains = trace.trains and (self._evaluation_ends is None or trace.steps > 0)
        if outcome in ("traced", "finished") and not trace.trains:
            trace.notes.append(
                "The script did not train in the traced steps. The estimate is the peak memory use of its forward passes"
            )
        elif self.device.recorder.clock.without_optimizer:
            trace.notes.append("The script has no optimizer, so each backward pass counts as a step")
        if trace.trains and not self._validation_batches and not ran_to_its_end:
            executed = self._executed.with_allocations(trace.events)
            trace.untraced_evaluation = untraced_evaluation(executed)
        result = {
            "outcome": outcome, "error": error, "exit_code": exit_code, "steps": trace.steps, "trains": trace.trains,
            "batch_size": trace.batch_size, "uncertain_bytes": trace.uncertain_bytes, "alternatives": trace.alternatives,
            "optional": sorted(trace.optional), "values_substituted": trace.values_substituted, "differing_versions": trace.differing_versions, "notes": trace.notes,
            "batches": self._batches, "validation_starts": trace.validation_starts, "reserved": self.device.devices[device].allocator.peak_reserved,
            "first_batch": trace.first_batch, "is_settled": trace.is_settled, "is_finished": trace.is_finished, "is_partial": trace.is_partial, "is_own_failure": self._is_own_failure,
            "untraced_evaluation": trace.untraced_evaluation, "validates": self._validation_batches > 0,
        }  # fmt: skip
        if self._path is None:
            self._pipe.send({"event": "ended", **result})
        else:
            self.device.recorder.allocations.sink = discard
            with CaptureWriter(Path(self._path), run=result, force=True, max_bytes=1 << 30) as writer:
                for event in trace.events:
                    writer.write(event)
        if hasattr(signal, "SIGCHLD"):  # a DataLoader would report the exit of its workers as an error
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.kill()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def run_job(job: dict[str, Any], pipe: "Connection[Any, Any]") -> NoReturn:
    TracingProcess(job, pipe).run()


def _apply_edits(edits: Mapping[str, str]) -> None:
    """Replace the contents of some files for this process only. The files on disk do not change. The replacement
    applies to files that the script opens and to modules that it imports.
    """
    for path, text in edits.items():
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    if not edits:
        return
    plain_get_code = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, fullname: str) -> Any:
        path = os.path.abspath(loader.get_filename(fullname))
        return (
            compile(edits[path], path, "exec", dont_inherit=True)
            if path in edits
            else plain_get_code(loader, fullname)
        )

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign,assignment]


def _where() -> str:
    """Return a comma and the line of the user's code that is running now, or "" if no user code is running."""
    frame, _ = user_frame(sys._getframe(2))
    return f", {os.path.basename(frame.file)}:{frame.line}" if frame else ""


def _describe(error: BaseException, hooked: bool) -> tuple[str, str]:
    """Return the error in one line, and the line of the user's code that raised it."""
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    frame = None if innermost is None else user_frame(innermost.tb_frame)[0]
    where = "" if frame is None else f"{os.path.basename(frame.file)}:{_line(error, frame)}, "
    return shorten(_in_one_line(error), MAX_ERROR_LENGTH, placeholder=" …"), where


def _in_one_line(error: BaseException) -> str:
    if isinstance(error, SyntaxError):  # the lines before it are code
        return f"{type(error).__name__}: {error}"
    lines = [line.rstrip() for line in "".join(traceback.format_exception_only(error)).strip().splitlines()]
    if lines[0].endswith(":"):  # an error from another process: its last line is the cause
        return f"{lines[0]} {lines[-1]}"
    return lines[0]


def _line(error: BaseException, found: Frame) -> int:
    """Return the line number of the error, as shown in the traceback. The frame's current line may be wrong, because it
    changes while a `finally` block runs.
    """
    lines = [
        entry.lineno for entry in traceback.extract_tb(error.__traceback__) if entry.filename == found.file
    ]
    return lines[-1] or found.line if lines else found.line


_NO_DATA = "Cannot access data pointer"
"""A part of torch's error message for an extension kernel or a Triton kernel that receives a tensor without data."""


def _no_loader() -> None: ...


def _parameters(optimizer: torch.optim.Optimizer | None) -> list[torch.Tensor]:
    groups = getattr(optimizer, "param_groups", None) or ()
    return [each for group in groups for each in group.get("params", ()) if each.requires_grad]
