"""The process in which configurations are traced: the training function runs without data until it has taken two steps.

It enters an endless virtual GPU, imports the function once and then takes requests: a configuration and a micro-batch. Each is
served by a fork that runs the function, replays what it asked for with every GPU's capacity in force, and answers with figures alone. Nothing the function would do afterwards happens: the fork is gone at its second step.
"""

import contextlib
import gc
import hashlib
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import psutil
import torch

from legroom.observe.cuda_rules import optimizers
from legroom.observe.exit_with_parent import exit_with_parent
from legroom.observe.fake.fake_tensors import FakeTensors
from legroom.observe.fake.hidden_gpus import hide_real_gpus
from legroom.observe.virtual.gpu import VirtualGPU
from legroom.predict.fit import replay, safe_reserved, safety_margin
from legroom.predict.tracing.trace import Trace
from legroom.predict.tracing.virtual_trace import finish, make_device
from legroom.train.guarding.guard import Guard
from legroom.tuning.memory.tracer import TraceOrder, TraceRequest
from legroom.tuning.schedule.schedulers import Action
from legroom.tuning.trial.process import called, print_to
from legroom.tuning.trial.trial import Reported, Trial

STEPS = 2
"""Optimizer steps: the first one makes the optimizer's state, the second one is like all others."""
BEHIND = 10
"""Added to the niceness of what is not in a hurry: a tenth of a processor beside trials that take all of them, the whole of one that is free."""
PIECES = 2
"""Of a split batch that are traced: the second one meets the first one's gradients, the others are like it."""


def trace(order: TraceOrder, pipe: Connection) -> NoReturn:
    """The whole life of a process that traces and does nothing else. It is asked through the pipe, and ends with it."""
    exit_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the study's to handle
    print_to(Path(order.printed))
    try:
        _Tracing(order, pipe).run()
    except BaseException:
        traceback.print_exc()
        os._exit(1)


class _Tracing:
    """Serves requests to trace one function."""

    def __init__(self, order: TraceOrder, pipe: Connection) -> None:
        self._order, self._pipe = order, pipe
        self._gpu = order.gpu
        self._trace = Trace(gpu=self._gpu, mode="fake")
        self._began = 0.0
        self._trial: _TracedTrial | None = None

    def run(self) -> NoReturn:
        torch.set_num_threads(1)  # a fork has none of its parent's threads
        hide_real_gpus()
        with contextlib.ExitStack() as stack:
            self._warm_up(self._device(stack))
        self._trace = Trace(gpu=self._gpu, mode="fake")
        with contextlib.ExitStack() as stack:
            device = self._device(stack)
            train = self._order.function.load()
            gc.freeze()  # what is there already is no fork's garbage
            self._say({"ready": True})
            while True:
                try:
                    request: TraceRequest = self._pipe.recv()
                except (EOFError, OSError):
                    os._exit(0)
                with tempfile.TemporaryDirectory(prefix="legroom-") as folder:
                    child = os.fork()
                    if child == 0:
                        exit_with_parent()
                        self._serve(request, Path(folder), train, device)
                    self._say({"done": True, **self._awaited(child, request.patience)})

    def _awaited(self, child: int, patience: float) -> dict[str, str]:
        """Wait for a fork, not for ever."""
        deadline = time.monotonic() + patience
        while os.waitpid(child, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return {"error": f"two steps took longer than {patience:.0f} s to trace"}
            time.sleep(0.005)
        return {}

    def _device(self, stack: contextlib.ExitStack) -> VirtualGPU:
        """What the function finds as its GPU: one with CUDA's kernels, or for a virtual GPU one that counts as that does."""
        if not self._order.virtual:
            return stack.enter_context(make_device(self._gpu, "fake", self._trace.events.append))
        device = VirtualGPU(
            self._gpu, sink=self._trace.events.append, fake_tensors=FakeTensors(), bounded=False
        )
        stack.enter_context(device)
        stack.enter_context(optimizers.installed())
        return device

    def _warm_up(self, device: VirtualGPU) -> None:
        """What torch loads at its first step without data takes a second: here once, not in every fork."""
        model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(8, 2)).to(
            "cuda"
        )
        optimizer = torch.optim.AdamW(model.parameters())
        guard = Guard(
            model, optimizer, max_micro_batch_size=1, reduction="mean", coupling="ignore", cache_sizes=False
        )
        guard.step(lambda images: model(images).sum(), torch.zeros(2, 1, 4, 4, device="cuda")).item()
        finish(self._trace, device)

    def _serve(self, request: TraceRequest, folder: Path, train: Any, device: VirtualGPU) -> NoReturn:
        """In a fork: one configuration. `folder`: for what it would write."""
        if not request.in_hurry:
            os.nice(BEHIND)
        self._began = time.perf_counter()
        device.recorder.allocations.sink = self._trace.events.append  # a fork's events go nowhere otherwise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        self._trial = trial = _TracedTrial(
            number=0,
            config=request.config,
            folder=folder,
            device="cuda",
            ranks=self._order.ranks,
            channel=_GoOn(),
            _micro_batch=request.micro_batch,
        )
        clock = device.recorder.clock
        # Where a step ends is needed to play further ones: the cache may grow in them.
        tell = clock.on_step_end

        def step_ended(step: int, seconds: float) -> None:
            if tell is not None:
                tell(step, seconds)
            if step + 1 >= STEPS and clock.trains and not trial.guarded:
                self._answer(device)

        clock.on_step_end = step_ended
        # A guard tries out optimizers of its own, so its steps are counted where they are made.
        trial.on_steps = lambda steps: self._answer(device) if steps >= STEPS else None
        try:
            with _nothing_saved(), _group(self._order.ranks):
                called(train, dict(request.config), trial)
        except BaseException as error:
            last = traceback.format_exception_only(error)[-1].strip()[:200]
            self._say({"error": last})
            _leave()
        self._answer(device)

    def _answer(self, device: VirtualGPU) -> NoReturn:
        assert self._trial is not None
        trace = finish(self._trace, device)
        if not trace.trains or not trace.events:
            self._say({"error": "it took no training step on the GPU"})
            _leave()
        peaks = replay(trace)
        # A virtual GPU has no kernels that no rule knows: its trials take what was traced.
        extra = trace.uncertain_bytes if self._order.virtual else safety_margin(trace, peaks)
        safe = safe_reserved(trace, peaks, extra)
        sizes = hashlib.sha256()
        for request in trace.requests():
            sizes.update(f"{request.bytes},{request.stream};".encode())
        self._say(
            {
                "reserved": peaks.reserved,
                "safe": safe,
                "fits": tuple(
                    safe <= room or replay(trace, room, extra=extra).failed_at is None
                    for room in self._order.rooms
                ),
                "rows": self._trial.batch,
                "fewest": self._trial.fewest,
                "splits": self._trial.splits,
                "asked_for": sizes.hexdigest(),
                "seconds": time.perf_counter() - self._began,
            }
        )
        _leave()

    def _say(self, reply: dict[str, Any]) -> None:
        self._pipe.send(reply)


class _TracedTrial(Trial):
    """A trial whose guard traces a split batch by its first pieces, and notes how many rows it was given."""

    batch: int | None = None
    fewest: int = 1
    guarded: bool = False
    on_steps: Callable[[int], object] = staticmethod(lambda steps: None)

    def guard(self, model: Any, optimizer: Any, **options: Any) -> Guard:
        self.splits = True
        asked = options.pop("max_micro_batch_size", None)
        sizes = [size for size in (asked, self._micro_batch) if size is not None]
        options["cache_sizes"] = False
        guard = _TracedGuard(model, optimizer, max_micro_batch_size=min(sizes, default=None), **options)
        guard.trial, self.guarded = self, True
        return guard

    def _kept(self, checkpoint: Any) -> str | None:
        """There are no weights to keep."""
        return None


class _TracedGuard(Guard):
    """Takes the first pieces of a batch only, and does not look whether rows depend on each other: that needs data."""

    trial: _TracedTrial
    steps: int = 0

    def optimizer_step(self) -> None:
        super().optimizer_step()
        self.steps += 1
        self.trial.on_steps(self.steps)

    def _split(self, batch_size: int, micro: int) -> list[int]:
        self.trial.batch = max(batch_size, self.trial.batch or 0)
        self.trial.fewest = self._min_samples()
        return super()._split(batch_size, micro)[:PIECES]

    def _check_coupling(self, *_: Any) -> None:
        self._is_coupling_checked = True


class _GoOn:
    """Nobody stops a trace."""

    def report(self, told: Reported) -> Action:
        return Action.GO_ON


@contextlib.contextmanager
def _nothing_saved() -> Iterator[None]:
    """A trace writes no checkpoint."""
    plain = torch.save
    torch.save = lambda *arguments, **options: None
    try:
        yield
    finally:
        torch.save = plain


@contextlib.contextmanager
def _group(ranks: int) -> Iterator[None]:
    """A function of several ranks finds a process group. It has this process alone: what ranks would share is counted whole,
    so that the estimate is on the safe side."""
    if ranks == 1:
        yield
        return
    import torch.distributed as dist

    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=0, world_size=1)
        yield


def _leave() -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a loader would take its workers' end for a failure
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            child.kill()
    os._exit(0)
