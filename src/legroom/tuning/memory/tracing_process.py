"""The process that traces configurations. The training function runs with fake tensors until it has completed two
optimizer steps.

The process creates a virtual GPU without a memory limit and imports the function once. Each request contains a
configuration and a micro-batch size and is traced in a fork. The fork runs the function, replays its memory requests
with the capacity of every GPU, and sends the result. The fork exits at the second step, so later code does not run.
Changes to files are written to a sandbox, which is discarded. On systems that cannot fork, the process itself traces a
single request, and the study starts a new process for the next request.
"""

import contextlib
import gc
import hashlib
import os
import shutil
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
from legroom.observe.fake.fake_tensors import FakeTensors
from legroom.observe.fake.hidden_gpus import hide_real_gpus
from legroom.observe.virtual.gpu import VirtualGPU
from legroom.predict.fit import replay, safe_reserved, safety_margin
from legroom.predict.sandbox.checkpoints import checkpoints_in, no_model_saved
from legroom.predict.sandbox.sandbox import Sandbox
from legroom.predict.tracing.trace import Trace
from legroom.predict.tracing.virtual_trace import finish, make_device
from legroom.processes import can_fork, exit_with_parent
from legroom.train.guarding.guard import Guard
from legroom.tuning.memory.tracer import OUTPUT, SUGGESTED, TraceRequest, TracerSetup
from legroom.tuning.schedule.protocol import Action
from legroom.tuning.space.domains import Categorical
from legroom.tuning.trial.process import call, file_rendezvous, print_to
from legroom.tuning.trial.trial import ReportMessage, Trial

STEPS = 2
"""The number of optimizer steps to trace. The first step creates the optimizer state, and the second step represents
all later steps.
"""
NICENESS = 10
"""The niceness of traces that are not urgent. At this niceness, a trace gets about a tenth of a core while trials are
busy, and a full core if one is free.
"""
TRACED_MICRO_BATCHES = 2
"""The number of micro-batches to trace. The second micro-batch adds to existing gradients and represents all later
micro-batches.
"""


def run_tracing_process(setup: TracerSetup, pipe: Connection) -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the study handles Ctrl-C
    print_to(Path(setup.folder) / OUTPUT)
    try:
        _TracingServer(setup, pipe).run()
    except BaseException:
        traceback.print_exc()
        os._exit(1)


class _TracingServer:
    def __init__(self, setup: TracerSetup, pipe: Connection) -> None:
        self._setup, self._pipe = setup, pipe
        self._gpu = setup.gpu
        self._trace = Trace(gpu=self._gpu, mode="fake")
        self._began = 0.0
        self._trial: _TracedTrial | None = None

    def run(self) -> NoReturn:
        torch.set_num_threads(1)  # the threads of a parent do not exist in its forks
        hide_real_gpus()
        # The sandbox starts before the function is imported, because the import may also write files.
        self._sandbox = Sandbox(Path(self._setup.folder))
        if can_fork():
            with contextlib.ExitStack() as stack:
                self._warm_up(self._device(stack))
            self._trace = Trace(gpu=self._gpu, mode="fake")
        with contextlib.ExitStack() as stack:
            device = self._device(stack)
            train = self._setup.function.load()
            gc.freeze()  # forks need not scan objects that exist already
            self._send({"ready": True})
            while True:
                try:
                    request: TraceRequest = self._pipe.recv()
                except (EOFError, OSError):
                    os._exit(0)
                with tempfile.TemporaryDirectory(prefix="legroom-") as folder:
                    if not can_fork():
                        self._serve(request, Path(folder), train, device)
                    child = os.fork()
                    if child == 0:
                        exit_with_parent()
                        self._serve(request, Path(folder), train, device)
                    outcome = self._wait_for_child(child, request.timeout)
                shutil.rmtree(Path(self._setup.folder) / f"files-{child}", ignore_errors=True)
                self._send({"done": True, **outcome})

    def _wait_for_child(self, child: int, timeout: float) -> dict[str, str]:
        deadline = time.monotonic() + timeout
        while os.waitpid(child, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return {"error": f"tracing two steps took longer than {timeout:.0f} s"}
            time.sleep(0.005)
        return {}

    def _device(self, stack: contextlib.ExitStack) -> VirtualGPU:
        """Return the GPU that is visible to the function: a simulation of the real GPU and its kernels, or a virtual GPU."""
        if not self._setup.virtual:
            return stack.enter_context(make_device(self._gpu, "fake", self._trace.events.append))
        device = VirtualGPU(
            self._gpu, sink=self._trace.events.append, fake_tensors=FakeTensors(), bounded=False
        )
        stack.enter_context(device)
        stack.enter_context(optimizers.installed())
        return device

    def _warm_up(self, device: VirtualGPU) -> None:
        """Run one step before forking. The first step imports modules of torch, which takes about a second and would
        otherwise be repeated in every fork.
        """
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
        no_model_saved()
        if can_fork():
            self._sandbox.continue_in_fork()
        if not request.urgent:
            _lower_priority()
        self._began = time.perf_counter()
        device.recorder.allocations.sink = (
            self._trace.events.append
        )  # the parent's list is not used in a fork
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        self._trial = trial = _TracedTrial(
            number=0,
            config=request.config,
            folder=folder,
            device="cuda",
            ranks=self._setup.ranks,
            checkpoint=request.checkpoint,
            channel=_AlwaysContinue(),
            _micro_batch=request.micro_batch,
        )
        trial.on_suggestion = lambda name, domain: self._send({f"{SUGGESTED}{name}": domain})
        clock = device.recorder.clock
        # The positions at which steps end are needed to replay more steps, because the allocator's cache may still
        # grow.
        on_step_end = clock.on_step_end

        def step_ended(step: int, seconds: float) -> None:
            if on_step_end is not None:
                on_step_end(step, seconds)
            if step + 1 >= STEPS and clock.trains and not trial.guarded:
                self._answer(device)

        clock.on_step_end = step_ended
        # A guard tries optimizer steps of its own, so its steps are counted separately.
        trial.on_steps = lambda steps: self._answer(device) if steps >= STEPS else None
        try:
            with checkpoints_in(self._sandbox, has_data=False), _group(self._setup.ranks):
                call(train, dict(request.config), trial)
        except BaseException as error:
            last = traceback.format_exception_only(error)[-1].strip()[:200]
            self._send({"error": last})
            self._exit()
        self._answer(device)

    def _answer(self, device: VirtualGPU) -> NoReturn:
        assert self._trial is not None
        trace = finish(self._trace, device)
        if not trace.trains or not trace.events:
            self._send({"error": "the function took no training step on the GPU"})
            self._exit()
        peaks = replay(trace)
        # A virtual GPU has no kernels with unknown workspaces: its trials use exactly what was traced.
        extra = trace.uncertain_bytes if self._setup.virtual else safety_margin(trace, peaks)
        safe = safe_reserved(trace, peaks, extra)
        sizes = hashlib.sha256()
        for request in trace.requests():
            sizes.update(f"{request.bytes},{request.stream};".encode())
        self._send(
            {
                "reserved": peaks.reserved,
                "safe": safe,
                "fits": tuple(
                    safe <= capacity or replay(trace, capacity, extra=extra).failed_at is None
                    for capacity in self._setup.capacities
                ),
                "batch_size": self._trial.batch,
                "min_micro_batch": self._trial.min_micro_batch,
                "can_split": self._trial.can_split,
                "request_hash": sizes.hexdigest(),
                "seconds": time.perf_counter() - self._began,
            }
        )
        self._exit()

    def _exit(self) -> NoReturn:
        if not can_fork():  # otherwise the parent of the fork sends this message
            self._send({"done": True})
        _exit()

    def _send(self, reply: dict[str, Any]) -> None:
        self._pipe.send(reply)


class _TracedTrial(Trial):
    """A trial whose Guard traces only the first micro-batches of a split batch and records the batch size."""

    batch: int | None = None
    min_micro_batch: int = 1
    guarded: bool = False
    on_steps: Callable[[int], object] = staticmethod(lambda steps: None)
    on_suggestion: Callable[[str, Any], object] = staticmethod(lambda name, domain: None)

    def _suggested(self, name: str, domain: Any) -> Any:
        """Return the value of a parameter. If the space is not known yet, return the largest value."""
        self.on_suggestion(name, domain)
        if name not in self.config:
            self.config[name] = domain.options[0] if isinstance(domain, Categorical) else domain.high
        return self.config[name]

    def guard(self, model: Any, optimizer: Any, **options: Any) -> Guard:
        self.can_split = True
        requested = options.pop("max_micro_batch_size", None)
        sizes = [size for size in (requested, self._micro_batch) if size is not None]
        options["cache_sizes"] = False
        guard = _TracedGuard(model, optimizer, max_micro_batch_size=min(sizes, default=None), **options)
        guard.trial, self.guarded = self, True
        return guard

    def _save_checkpoint(self, checkpoint: Any) -> str | None:
        """Do nothing, because fake tensors have no data to save."""
        return None


class _TracedGuard(Guard):
    """A Guard that runs only the first micro-batches of a split batch. A `_TracedGuard` does not check whether samples
    depend on each other, because the check needs data.
    """

    trial: _TracedTrial
    steps: int = 0

    def optimizer_step(self) -> None:
        super().optimizer_step()
        self.steps += 1
        self.trial.on_steps(self.steps)

    def _split(self, batch_size: int, micro: int) -> list[int]:
        self.trial.batch = max(batch_size, self.trial.batch or 0)
        self.trial.min_micro_batch = self._min_samples()
        return super()._split(batch_size, micro)[:TRACED_MICRO_BATCHES]

    def _check_coupling(self, *_: Any) -> None:
        self._is_coupling_checked = True


class _AlwaysContinue:
    def report(self, message: ReportMessage) -> Action:
        return Action.CONTINUE


@contextlib.contextmanager
def _group(ranks: int) -> Iterator[None]:
    """Create a process group with only this process, for a function with several ranks. Sharded tensors are counted as
    unsharded, which is an upper bound.
    """
    if ranks == 1:
        yield
        return
    import torch.distributed as dist

    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(
            "gloo", init_method=file_rendezvous(Path(folder, "rendezvous")), rank=0, world_size=1
        )
        yield


def _lower_priority() -> None:
    if hasattr(os, "nice"):
        os.nice(NICENESS)
        return
    with contextlib.suppress(psutil.Error, AttributeError):
        psutil.Process().nice(psutil.BELOW_NORMAL_PRIORITY_CLASS)  # Windows


def _exit() -> NoReturn:
    if hasattr(signal, "SIGCHLD"):
        signal.signal(
            signal.SIGCHLD, signal.SIG_DFL
        )  # otherwise a loader reports its killed workers as an error
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            child.kill()
    os._exit(0)
