"""The process in which an unmodified script is traced: it runs up to its first batch once, and from there as often as asked.

At the first batch (or the first forward pass, where there is no DataLoader) it stops and takes requests. Each is served by
a fork that goes on from there: with another batch size, or with means of saving memory in force; as many at a time
as there are processors. A fork that has made its steps writes what it saw and is gone at once, so nothing the script
would do afterwards happens: no checkpoint, no `finally`, no exit handler.

Requests and replies are lines of JSON on two file descriptors; a trace itself is a capture file.
"""

import contextlib
import functools
import json
import os
import signal
import sys
import time
import traceback
import weakref
from collections.abc import Iterable
from pathlib import Path
from textwrap import shorten
from typing import Any, NoReturn

import psutil
import torch
from torch.utils.data import DataLoader
from torch.utils.data import dataloader as _dataloader

from legroom.gpus.catalog import GpuSpec
from legroom.gpus.machine import processors
from legroom.memory.capture.capture import CaptureWriter
from legroom.memory.events import Frame
from legroom.observe.dispatch.attribution import user_frame
from legroom.observe.exit_with_parent import exit_with_parent
from legroom.observe.fake.hidden_gpus import hide_real_gpus
from legroom.observe.script import Script, execute, installed
from legroom.observe.virtual.gpu import VirtualGPU
from legroom.predict.options.apply import in_force
from legroom.predict.options.names import Means
from legroom.predict.sandbox.checkpoints import checkpoints_in, no_model_saved
from legroom.predict.sandbox.sandbox import Sandbox
from legroom.predict.tracing.line_reader import LineReader
from legroom.predict.tracing.pause_gc import living, resting_during_imports
from legroom.predict.tracing.resize import batch_size_of, resized, row_shapes
from legroom.predict.tracing.trace import Trace
from legroom.predict.tracing.virtual_trace import finish, make_device, needs_arithmetic, needs_values

MOST_AT_ONCE = 4
"""Traces; each takes some hundred MiB of the host."""

LONGEST_REASON = 300
"""Characters of the script's own error that are told; its output has the rest."""
LONGEST_EVALUATION = 3.0
"""Seconds: what a script evaluates before its training is cut short there, since the training is what was asked for."""


class TracingProcess:
    """One script, traced on request."""

    def __init__(self, order: dict[str, Any], requests: int, replies: int) -> None:
        hide_real_gpus()
        self._sandbox = Sandbox(Path(order["folder"]))
        self.script = Script(order["script"], tuple(order["arguments"]), order["is_module"])
        self.steps: int = order["steps"]
        self.trace = Trace(
            gpu=_gpu_spec(order["gpu"]),
            mode=order["mode"],
        )
        self.device: VirtualGPU = make_device(self.trace.gpu, self.trace.mode, self.trace.events.append)
        self._requests = LineReader(requests)
        self._replies = os.fdopen(replies, "w")
        self._waiting = True
        self._path: str | None = None
        self._batch_size: int | None = None
        self._loader: Any = None
        self._batches = 0
        self._row_shapes: tuple[torch.Size, ...] | None = None
        """Of the loader's last batch."""
        self._evaluation_ends: float | None = None
        """Set once an evaluation before the training was seen (see `_training_follows`)."""
        self._resize_to: int | None = None
        self._imports = contextlib.ExitStack()
        """Left at the first batch: what is imported after that is little."""
        self._means = contextlib.ExitStack()
        """Of the one trace that a fork is for; never left, since the fork ends with it."""

    def run(self) -> NoReturn:
        torch.set_num_threads(1)  # a fork has none of its parent's threads
        with contextlib.ExitStack() as stack:
            self._imports.enter_context(resting_during_imports(self._holds_nothing))
            stack.enter_context(self._loaders_watched())
            stack.enter_context(self.device)
            self._count_steps()
            self._stop_at_first_call()
            self._end_where_data_is_needed()
            stack.enter_context(checkpoints_in(self._sandbox, has_data=self.trace.mode == "cpu"))
            self._note_compiling()
            with installed(self.script):
                outcome = execute(self.script, uncaught=_describe)
            how = "ended" if outcome.exit_code == 0 else "crashed"
            text = f"{outcome.traceback}{outcome.error}"
            if how == "crashed" and self.trace.mode == "fake" and _NO_DATA in text:
                how, text = (
                    "needs data",
                    f"its own compiled code reads a tensor, {outcome.traceback.strip(' ,')}",
                )
            self._end(how, text, outcome.exit_code)

    def _holds_nothing(self) -> bool:
        return not any(device.allocator.peak_reserved for device in self.device.devices)

    # --- waiting for requests, and serving them

    def _serve(self) -> None:
        """Waits at the first batch; returns in the forks that are to go on."""
        if not self._waiting:
            return
        self._imports.close()
        self._say({"event": "ready", "batch_size": self._batch_size})
        most = min(MOST_AT_ONCE, processors())
        waiting: list[dict[str, Any]] = []
        running: dict[int, int] = {}
        while True:
            try:
                line = self._requests.line(0.02 if running else None)
            except EOFError:
                self._leave(running)
            if line is not None:
                waiting.append(json.loads(line))
            for child in [child for child in running if os.waitpid(child, os.WNOHANG)[0]]:
                self._say({"event": "done", "number": running.pop(child)})
            while waiting and len(running) < most:
                waiting.sort(key=lambda request: not request["urgent"])
                request = waiting.pop(0)
                child = os.fork()
                if child == 0:
                    exit_with_parent()
                    self._go_on(request)
                    return
                running[child] = request["number"]

    def _go_on(self, request: dict[str, Any]) -> None:
        """In a fork: what was asked for is in force from here to its end."""
        self._waiting = False
        self.device.recorder.allocations.sink = (
            self.trace.events.append
        )  # a fork's events go nowhere otherwise
        self._path = request["path"]
        self._batch_size = request["batch_size"] or self._batch_size
        self._resize_to = request["batch_size"]
        no_model_saved()
        self._sandbox.continue_in_fork()
        if request["means"]:
            means = map(Means, request["means"])
            self._means.enter_context(
                in_force(*means, refuse=lambda: self._end("crashed", "nothing changes"))
            )
            self._end_at_failures()

    def _leave(self, running: Iterable[int]) -> NoReturn:
        """Nobody asks any more."""
        for child in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        os._exit(0)

    def _say(self, reply: dict[str, Any]) -> None:
        self._replies.write(json.dumps(reply) + "\n")
        self._replies.flush()

    # --- the moments that matter

    @contextlib.contextmanager
    def _loaders_watched(self) -> Any:
        plain_iter, plain_next = DataLoader.__iter__, _dataloader._BaseDataLoaderIter.__next__

        def iterate(loader: Any) -> Any:
            evaluates = not torch.is_grad_enabled()
            if self._loader is None or (self._is_before_training() and not evaluates):
                self._loader, self._batches, self._row_shapes = loader, 0, None
                self._batch_size = self._resize_to or loader.batch_size
                self._serve()
            iterator: Any = plain_iter(loader)
            iterator._legroom_loader, iterator._legroom_evaluates = weakref.ref(loader), evaluates
            return iterator

        def give(iterator: Any) -> Any:
            if getattr(iterator, "_legroom_evaluates", False) and self._evaluation_is_long():
                raise StopIteration
            batch = plain_next(iterator)
            if getattr(iterator, "_legroom_loader", _nothing)() is self._loader:
                self._batches += 1
                if self._resize_to is not None:
                    batch = resized(batch, self._resize_to)
                self._batch_size = batch_size_of(batch) or self._batch_size
                self._compare_rows(row_shapes(batch))
            return batch

        DataLoader.__iter__ = iterate  # type: ignore[method-assign]
        _dataloader._BaseDataLoaderIter.__next__ = give  # type: ignore[method-assign,assignment]
        yield
        DataLoader.__iter__ = plain_iter  # type: ignore[method-assign]
        _dataloader._BaseDataLoaderIter.__next__ = plain_next  # type: ignore[method-assign]

    def _compare_rows(self, shapes: tuple[torch.Size, ...]) -> None:
        if self._row_shapes not in (None, shapes):
            self._note(
                "Batches differ in shape, and one with longer rows than those traced needs more: "
                f"--steps {10 * self.steps} traces more of them"
            )
        self._row_shapes = shapes

    def _note(self, sentence: str) -> None:
        if sentence not in self.trace.notes:
            self.trace.notes.append(sentence)

    def _training_follows(self) -> bool:
        """Whether training is still to come: nothing was trained with the batches so far, but there is an optimizer.

        They were an evaluation then, or fetched ahead. Steps are counted anew, and a loader that is iterated now is the
        training's.
        """
        clock = self.device.recorder.clock
        if clock.trains or not clock.has_optimizer():
            return False
        clock.trains, clock.step = True, 0  # from now on, batches are no steps
        self._evaluation_ends = time.monotonic() + LONGEST_EVALUATION
        return True

    def _is_before_training(self) -> bool:
        return self._evaluation_ends is not None and self.device.recorder.clock.step == 0

    def _evaluation_is_long(self) -> bool:
        if (
            self._evaluation_ends is None
            or not self._is_before_training()
            or time.monotonic() < self._evaluation_ends
        ):
            return False
        self._note("An evaluation before the training was cut short")
        return True

    def _stop_at_first_call(self) -> None:
        """Where no loader is iterated first, the first call of a model is where requests are taken. Before it, not
        inside a hook of it: hooks that a means adds must see that call too."""
        plain_call = torch.nn.Module.__call__

        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            torch.nn.Module.__call__ = plain_call  # type: ignore[method-assign]
            if self._loader is None:
                self._loader = module  # later loaders are not the training's
                self._serve()
            return module(*args, **kwargs)

        torch.nn.Module.__call__ = call  # type: ignore[method-assign]

    def _note_compiling(self) -> None:
        plain_compile = torch.compile

        @functools.wraps(plain_compile)
        def compile(*args: Any, **kwargs: Any) -> Any:
            self._note("The model is compiled (torch.compile); estimated is the step as it runs without that")
            return plain_compile(*args, **kwargs)

        torch.compile = compile

    def _end_at_failures(self) -> None:
        """A means may make the model fail. The script would not have: nothing it does on failures may happen."""

        def ending(function: Any) -> Any:
            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                try:
                    return function(*args, **kwargs)
                except Exception as error:
                    self._end("crashed", _describe(error, False)[0])

            return call

        torch.nn.Module.__call__ = ending(torch.nn.Module.__call__)  # type: ignore[method-assign]
        torch.Tensor.backward = ending(torch.Tensor.backward)  # type: ignore[method-assign]

    def _end_where_data_is_needed(self) -> None:
        """The same where the script asks for what a trace does not have: it will be run again, with real arithmetic."""
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
                lacking = "" if needs_values(error) else ": it has no fake implementation"
                self._end("needs data", f"{func.overloadpacket}{_where()}{lacking}", 1)

        fake_tensors.run = run  # type: ignore[method-assign]

    def _count_steps(self) -> None:
        clock = self.device.recorder.clock
        clock.has_optimizer = lambda: any(living(torch.optim.Optimizer))
        tell = clock.on_step_end

        def step_ended(step: int, seconds: float) -> None:
            if tell is not None:
                tell(step, seconds)
            if step + 1 >= self.steps and not self._training_follows():
                self._end("stepped")

        clock.on_step_end = step_ended

    def _end(self, how: str, text: str = "", exit_code: int = 0) -> NoReturn:
        """Write what was seen and be gone, whatever the script would still do."""
        trace = finish(self.trace, self.device)
        trace.batch_size = self._batch_size
        trace.trains = trace.trains and (self._evaluation_ends is None or trace.steps > 0)
        if how in ("stepped", "ended") and not trace.trains:
            trace.notes.append(
                "Nothing was trained up to there, so this is the peak of the forward passes alone"
            )
        elif self.device.recorder.clock.without_optimizer:
            trace.notes.append("There is no optimizer, so each backward pass was taken for a step")
        facts = {
            "how": how, "text": text, "exit_code": exit_code, "steps": trace.steps, "trains": trace.trains,
            "batch_size": trace.batch_size, "doubt": trace.doubt, "doubts": trace.doubts, "spare": sorted(trace.spare), "made_up": trace.made_up,
            "differing_versions": trace.differing_versions,
            "notes": trace.notes, "batches": self._batches, "reserved": self.device.devices[0].allocator.peak_reserved,
        }  # fmt: skip
        if self._path is None:
            self._say({"event": "over", **facts})
        else:
            self.device.recorder.allocations.sink = _nowhere
            with CaptureWriter(Path(self._path), run=facts, force=True, max_bytes=1 << 30) as writer:
                for event in trace.events:
                    writer.write(event)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a loader would take its workers' end for a failure
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.kill()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _gpu_spec(fields: dict[str, Any]) -> GpuSpec:
    """JSON turns tuples into lists, and a list cannot be hashed."""
    tuples = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return GpuSpec(**{**fields, **tuples})


def _where() -> str:
    """The user's line that is being run, after a comma."""
    frame, _ = user_frame(sys._getframe(2))
    return f", {os.path.basename(frame.file)}:{frame.line}" if frame else ""


def _describe(error: BaseException, hooked: bool) -> tuple[str, str]:
    """The error in one line, and the user's line that it came from."""
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    frame = None if innermost is None else user_frame(innermost.tb_frame)[0]
    where = "" if frame is None else f"{os.path.basename(frame.file)}:{_line(error, frame)}, "
    return shorten(_in_one_line(error), LONGEST_REASON, placeholder=" …"), where


def _in_one_line(error: BaseException) -> str:
    if isinstance(error, SyntaxError):  # the lines before are the code
        return f"{type(error).__name__}: {error}"
    lines = [line.rstrip() for line in "".join(traceback.format_exception_only(error)).strip().splitlines()]
    if lines[0].endswith(":"):  # another process's error, which ends with what it was
        return f"{lines[0]} {lines[-1]}"
    return lines[0]


def _line(error: BaseException, found: Frame) -> int:
    """A frame's own line moves on while its `finally` runs; the traceback keeps where it failed."""
    lines = [
        entry.lineno for entry in traceback.extract_tb(error.__traceback__) if entry.filename == found.file
    ]
    return lines[-1] or found.line if lines else found.line


_NO_DATA = "Cannot access data pointer"
"""What torch says to a kernel (an extension's, Triton's) that is given a tensor without data."""


def _nowhere(event: object) -> None:
    pass


def _nothing() -> None:
    """A reference to a loader, for iterators that were made in some other way: never the loader's."""
