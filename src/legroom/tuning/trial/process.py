"""The process of one trial: it gets its GPU and its share of it, loads the function, runs it, and says how it ended.

Every trial has a process of its own, so that its memory goes back whatever it did. The share is a cap
(`set_per_process_memory_fraction`): trials beside it on the same GPU cannot be robbed by one that was estimated wrongly.
"""

import contextlib
import inspect
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
from legroom.observe.exit_with_parent import exit_with_parent
from legroom.tuning.engines.cpu_share import Threads
from legroom.tuning.memory.admission import Place
from legroom.tuning.schedule.schedulers import Action
from legroom.tuning.space.space import Config
from legroom.tuning.trial.function import CannotLoad, Train, TrainFunction
from legroom.tuning.trial.records import TrialState
from legroom.tuning.trial.trial import (
    Channel,
    DiskFull,
    Reported,
    StopTrial,
    Trial,
    out_of_memory_count,
    reserved_peak,
)

LONGEST_REASON = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a trial's process is told. Plain data, so that it can travel."""

    number: int
    config: Config
    function: TrainFunction
    folder: str
    place: Place | None = None
    """None: the host."""
    cap: int | None = None
    """Bytes that PyTorch may reserve on the GPU."""
    micro_batch: int | None = None
    checkpoint: str | None = None
    step: int = 0
    rank: int = 0
    ranks: int = 1
    meeting: str = ""
    """Where the ranks of this trial meet, as torch's `init_method`."""
    threads: str = ""
    """The file that says how many it has, where its processors are shared with other trials (see `processor_share`)."""
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEnd:
    """How the function ended."""

    state: TrialState
    why: str = ""
    final: dict[str, float] | None = None
    """Metrics that it returned instead of reporting them."""
    actual_bytes: int | None = None
    ooms: int = 0
    is_disk_full: bool = False
    """It could not write its checkpoint."""
    is_in_vain: bool = False
    """Every other trial would end so, too: the function cannot even be loaded."""
    failed_at: float = 0.0
    """When the error was raised, by the clock on the wall; 0 of a process that could not say."""


def run_trial(order: Order, channel: Channel) -> TrialEnd:
    """Run the function in this process. Whatever it raises is told, not raised."""
    os.environ.update(order.environment)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_device(order))
            stack.enter_context(_group(order))
            trial = Trial(
                number=order.number,
                config=order.config,
                folder=Path(order.folder),
                device="cpu" if order.place is None else "cuda",
                rank=order.rank,
                ranks=order.ranks,
                checkpoint=order.checkpoint,
                step=order.step,
                channel=channel,
                _micro_batch=order.micro_batch,
            )
            returned = called(order.function.load(), dict(order.config), trial)
            end = TrialEnd(state=TrialState.FINISHED, final=_metrics(returned))
        except StopTrial:
            end = TrialEnd(state=TrialState.STOPPED)
        except BaseException as error:
            end = _failed(error)
        return replace(end, actual_bytes=reserved_peak(), ooms=out_of_memory_count())


def called(train: Train, config: Config, trial: Trial) -> Any:
    """Calls the function with what it takes: a plain Ray function has no place for the trial."""
    try:
        inspect.signature(train).bind(config, trial)
    except TypeError:
        return train(config)
    except ValueError:  # it does not tell
        pass
    return train(config, trial)


def live(order: Order, pipe: Connection) -> None:
    """The whole life of a process that runs one rank of a trial and nothing else."""
    exit_with_parent()
    threading.Thread(target=_leave_with, args=(pipe,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the engine's to handle
    settle_in(order)
    end = run_trial(order, _PipeChannel(pipe, Threads(order.threads)))
    with contextlib.suppress(OSError):  # nobody is there any more
        pipe.send(end)
    sys.stdout.flush()
    sys.stderr.flush()
    # What the function left running (threads, loaders) must not hold the GPU: the end is here.
    os._exit(0)


def _leave_with(pipe: Connection) -> None:
    """End this process once nobody is at the other end of the pipe: a trial that nobody hears must not keep its GPU."""
    watched = select.poll()
    watched.register(pipe.fileno(), getattr(select, "POLLRDHUP", select.POLLHUP))
    watched.poll()
    os._exit(1)


class _PipeChannel:
    """Asks the engine at the other end of a pipe."""

    def __init__(self, pipe: Connection, threads: Threads) -> None:
        self._pipe, self._threads = pipe, threads
        threads.take()
        threads.follow()

    def report(self, told: Reported) -> Action:
        try:
            self._pipe.send(told)
            action = Action(self._pipe.recv())
        except (EOFError, OSError):
            return Action.STOP
        self._threads.take()
        return action


@contextlib.contextmanager
def _device(order: Order) -> Iterator[None]:
    """The GPU that the trial was given is the only one that it sees, and it has its share of it."""
    place = order.place
    if place is None:
        yield
        return
    if not place.virtual:
        os.environ["CUDA_VISIBLE_DEVICES"] = _visible(place.index)
    import torch

    if place.virtual:
        from legroom.observe.virtual.gpu import VirtualGPU

        with VirtualGPU(place.spec):
            _cap(torch, order.cap, place.memory)
            yield
        return
    _cap(torch, order.cap, place.memory)
    yield


def _visible(index: int) -> str:
    """The GPU's name for a process that is to see it alone: of those that this environment shows."""
    named = named_gpus()
    return named[index] if named else str(index)


def _cap(torch: Any, cap: int | None, memory: int) -> None:
    if cap is not None and cap < memory:
        torch.cuda.set_per_process_memory_fraction(cap / memory, 0)


@contextlib.contextmanager
def _group(order: Order) -> Iterator[None]:
    """A process group among the trial's ranks, where it has several."""
    if order.ranks == 1:
        yield
        return
    import torch.distributed as dist

    real = order.place is not None and not order.place.virtual
    os.environ.update(RANK=str(order.rank), LOCAL_RANK="0", WORLD_SIZE=str(order.ranks))
    dist.init_process_group(
        "nccl" if real else "gloo",
        init_method=order.meeting,
        rank=order.rank,
        world_size=order.ranks,
    )
    try:
        yield
    finally:
        with contextlib.suppress(Exception):
            dist.destroy_process_group()


def _metrics(returned: Any) -> dict[str, float] | None:
    """What a function returned, where it is a dict of numbers."""
    if not isinstance(returned, dict):
        return None
    numbers: dict[str, float] = {}
    for name, value in returned.items():
        with contextlib.suppress(TypeError, ValueError):
            numbers[str(name)] = float(value)
    return numbers or None


def _failed(error: BaseException) -> TrialEnd:
    from legroom.diagnose.oom.recognize import classify

    if isinstance(error, DiskFull):
        return TrialEnd(state=TrialState.FAILED, why=str(error), is_disk_full=True, failed_at=time.time())
    traceback.print_exception(error)
    reason = _reason(error)[:LONGEST_REASON]
    if isinstance(error, MemoryError | RuntimeError) and classify(error).is_oom:
        why = f"out of memory{_place_of(error)}: {reason}"
        return TrialEnd(state=TrialState.OUT_OF_MEMORY, why=why, failed_at=time.time())
    if isinstance(error, SystemExit):
        reason = f"the function left with sys.exit({error.code if isinstance(error.code, int) else 1})"
    return TrialEnd(
        state=TrialState.FAILED,
        why=f"{reason}{_place_of(error)}",
        is_in_vain=isinstance(error, CannotLoad),
        failed_at=time.time(),
    )


def _reason(error: BaseException) -> str:
    """An error in one line; one of ours is a sentence in itself."""
    if isinstance(error, LegroomError):
        return str(error)
    shown = next(part for part in traceback.format_exception_only(error) if not part.startswith(" "))
    first, *rest = shown.strip().splitlines()
    return f"{first} {rest[0].strip()}" if rest and first.endswith(":") else first


def _place_of(error: BaseException) -> str:
    """The last line of the user's that the error passed, after a comma."""
    from legroom.observe.dispatch.attribution import user_frame

    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    frame = None if innermost is None else user_frame(innermost.tb_frame)[0]
    return "" if frame is None else f", {os.path.basename(frame.file)}:{frame.line}"


def settle_in(order: Order) -> None:
    """This process is the trial's from now on: what it prints goes to a file of the trial's."""
    print_to(Path(order.folder) / ("output.txt" if order.rank == 0 else f"output-{order.rank}.txt"))


def print_to(path: Path) -> None:
    """What this process prints from now on, and what its own processes print, goes to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
