"""The process of one trial. The process limits its GPU memory, runs the training function, and reports the result.

Every trial has its own process, so the memory of a trial is always freed. The limit is set with
`set_per_process_memory_fraction`. Therefore, a trial whose estimate was too low cannot use the memory of other trials
on the same GPU.
"""

import contextlib
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from legroom.errors import LegroomError
from legroom.gpus.machine import named_gpus
from legroom.tuning.engines.cpu_share import TrialThreads
from legroom.tuning.memory.admission import TrialGpu
from legroom.tuning.schedule.protocol import Action
from legroom.tuning.space.space import Config
from legroom.tuning.trial.function import CannotLoad, Train, TrainFunction, parameters_of
from legroom.tuning.trial.ray_session import ray_session
from legroom.tuning.trial.records import TrialState
from legroom.tuning.trial.trial import (
    THE_METRIC,
    Channel,
    DiskFull,
    ReportMessage,
    StopTrial,
    Trial,
    out_of_memory_count,
    reserved_peak,
)

LONGEST_REASON = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialTask:
    """The input of a trial's process, which can be pickled."""

    number: int
    config: Config
    function: TrainFunction
    folder: str
    gpu: TrialGpu | None = None
    cap: int | None = None
    """The number of bytes that PyTorch may reserve on the GPU."""
    micro_batch: int | None = None
    checkpoint: str | None = None
    step: int = 0
    rank: int = 0
    ranks: int = 1
    init_method: str = ""
    """The rendezvous of the ranks, as in `torch.distributed.init_process_group`."""
    threads: str = ""
    """The file with the number of threads (see `cpu_share`), if trials share the CPU cores."""
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialExit:
    """The result of a training function."""

    state: TrialState
    reason: str = ""
    final: dict[str, float] | None = None
    """The metrics that the function returned instead of passing them to `report`."""
    actual_bytes: int | None = None
    ooms: int = 0
    is_disk_full: bool = False
    affects_all_trials: bool = False
    """True if the function cannot be loaded, in which case all other trials would fail too."""
    failed_at: float = 0.0
    """The time at which the error was raised, in seconds since the epoch, or 0 if the process died."""


def run_trial(task: TrialTask, channel: Channel) -> TrialExit:
    """Run the function in this process. An exception is returned as a `TrialExit`."""
    os.environ.update(task.environment)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_device(task))
            stack.enter_context(_group(task))
            trial = Trial(
                number=task.number,
                config=task.config,
                folder=Path(task.folder),
                device="cpu" if task.gpu is None else "cuda",
                rank=task.rank,
                ranks=task.ranks,
                checkpoint=task.checkpoint,
                step=task.step,
                channel=channel,
                _micro_batch=task.micro_batch,
            )
            returned = call(task.function.load(), dict(task.config), trial)
            end = TrialExit(state=TrialState.FINISHED, final=_metrics(returned))
        except StopTrial:
            end = TrialExit(state=TrialState.STOPPED)
        except BaseException as error:
            is_pruned = type(error).__name__ == "TrialPruned"  # Optuna's exception, which the function raised
            end = TrialExit(state=TrialState.STOPPED, reason="Pruned") if is_pruned else _failure(error)
        return replace(end, actual_bytes=reserved_peak(), ooms=out_of_memory_count())


def call(train: Train, config: Config, trial: Trial) -> Any:
    names = parameters_of(train)
    values = {names.config: config, names.trial: trial, names.checkpoint_dir: trial.checkpoint}
    named = {name: value for name, value in values.items() if name is not None}
    with ray_session(trial, needed=names.trial is None):
        return train(config) if names.is_unknown else train(**named)


def run_trial_process(task: TrialTask, pipe: Connection) -> None:
    threading.Thread(target=_exit_when_closed, args=(pipe,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine handles Ctrl-C
    redirect_output(task)
    end = run_trial(task, _PipeChannel(pipe, TrialThreads(task.threads)))
    with contextlib.suppress(OSError):  # the engine has exited
        pipe.send(end)
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads and loaders that the function left running must not keep the GPU memory.
    os._exit(0)


def _exit_when_closed(pipe: Connection) -> None:
    """Exit when the other end of the pipe is closed, because a trial without an engine must not keep its GPU.

    Windows has no `poll`, so a process on Windows exits when its parent process has exited (see `legroom.processes`).
    """
    if not hasattr(select, "poll"):
        return
    watched = select.poll()
    watched.register(pipe.fileno(), getattr(select, "POLLRDHUP", select.POLLHUP))
    watched.poll()
    os._exit(1)


class _PipeChannel:
    def __init__(self, pipe: Connection, threads: TrialThreads) -> None:
        self._pipe, self._threads = pipe, threads
        threads.update()
        threads.update_after_steps()

    def report(self, message: ReportMessage) -> Action:
        try:
            self._pipe.send(message)
            action = Action(self._pipe.recv())
        except (EOFError, OSError):
            return Action.STOP
        self._threads.update()
        return action


@contextlib.contextmanager
def _device(task: TrialTask) -> Iterator[None]:
    """Make the trial's GPU the only visible GPU, and limit its memory."""
    gpu = task.gpu
    if gpu is None:
        yield
        return
    if not gpu.virtual:
        os.environ["CUDA_VISIBLE_DEVICES"] = _visible(gpu.index)
    import torch

    if gpu.virtual:
        from legroom.observe.virtual.gpu import VirtualGPU

        with VirtualGPU(gpu.spec):
            _cap(torch, task.cap, gpu.memory)
            yield
        return
    _cap(torch, task.cap, gpu.memory)
    yield


def _visible(index: int) -> str:
    named = named_gpus()
    return named[index] if named else str(index)


def _cap(torch: Any, cap: int | None, memory: int) -> None:
    if cap is not None and cap < memory:
        torch.cuda.set_per_process_memory_fraction(cap / memory, 0)


def file_rendezvous(file: Path) -> str:
    return f"file:///{file.as_posix().removeprefix('/')}"


@contextlib.contextmanager
def _group(task: TrialTask) -> Iterator[None]:
    if task.ranks == 1:
        yield
        return
    import torch.distributed as dist

    real = task.gpu is not None and not task.gpu.virtual
    os.environ.update(RANK=str(task.rank), LOCAL_RANK="0", WORLD_SIZE=str(task.ranks))
    dist.init_process_group(
        "nccl" if real else "gloo",
        init_method=task.init_method,
        rank=task.rank,
        world_size=task.ranks,
    )
    try:
        yield
    finally:
        with contextlib.suppress(Exception):
            dist.destroy_process_group()


def _metrics(returned: Any) -> dict[str, float] | None:
    if returned is not None and not isinstance(returned, dict | str | bytes):
        returned = {THE_METRIC: returned}
    if not isinstance(returned, dict):
        return None
    numbers: dict[str, float] = {}
    for name, value in returned.items():
        with contextlib.suppress(TypeError, ValueError):
            numbers[str(name)] = float(value)
    return numbers or None


def _failure(error: BaseException) -> TrialExit:
    from legroom.diagnose.oom.recognize import classify

    if isinstance(error, DiskFull):
        return TrialExit(state=TrialState.FAILED, reason=str(error), is_disk_full=True, failed_at=time.time())
    traceback.print_exception(error)
    text = _one_line(error)[:LONGEST_REASON]
    if isinstance(error, MemoryError | RuntimeError) and classify(error).is_oom:
        reason = f"Out of memory{_location(error)}: {text}"
        return TrialExit(state=TrialState.OUT_OF_MEMORY, reason=reason, failed_at=time.time())
    if isinstance(error, SystemExit):
        text = f"The function called `sys.exit({error.code if isinstance(error.code, int) else 1})`"
    return TrialExit(
        state=TrialState.FAILED,
        reason=f"{text}{_location(error)}",
        affects_all_trials=isinstance(error, CannotLoad),
        failed_at=time.time(),
    )


def _one_line(error: BaseException) -> str:
    """Return an error in one line. For Legroom's own errors, the name of the class is omitted."""
    if isinstance(error, LegroomError):
        return str(error)
    shown = next(part for part in traceback.format_exception_only(error) if not part.startswith(" "))
    first, *rest = shown.strip().splitlines()
    return f"{first} {rest[0].strip()}" if rest and first.endswith(":") else first


def _location(error: BaseException) -> str:
    from legroom.observe.dispatch.attribution import user_frame

    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    frame = None if innermost is None else user_frame(innermost.tb_frame)[0]
    return "" if frame is None else f", {os.path.basename(frame.file)}:{frame.line}"


def redirect_output(task: TrialTask) -> None:
    print_to(Path(task.folder) / ("output.txt" if task.rank == 0 else f"output-{task.rank}.txt"))


def print_to(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
