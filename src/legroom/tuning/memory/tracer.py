"""The other end of `trial_tracing`: what a configuration asks of memory, traced in a process that stands by."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from legroom.gpus.catalog import GpuSpec
from legroom.observe.cuda_rules.convolution.cudnn_process import check_setting
from legroom.tuning.engines.fork_server import Forked, ServerGone, ended, fork_server
from legroom.tuning.memory.admission import Place
from legroom.tuning.space.space import Config
from legroom.tuning.trial.function import TrainFunction

PATIENCE, LONG_PATIENCE = 120.0, 600.0
"""Seconds for one trace, and for one that goes behind trials; what takes longer runs without an estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """The figures of one trace. Bytes that PyTorch reserves, without CUDA's context."""

    reserved: int
    safe: int
    fits: tuple[bool, ...]
    """For each place that was asked about, whether it surely fits there with the capacity in force."""
    rows: int | None
    """Of the largest batch that a guard was given."""
    fewest: int
    """Rows that a piece must have."""
    splits: bool
    """Whether the function can take a batch in pieces."""
    asked_for: str
    """Tells requests apart: equal for two configurations that ask for the same memory in the same order."""
    seconds: float


class CannotEstimate(Exception):  # noqa: N818
    """The function could not be traced; the sentence says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOrder:
    """What the process that traces is told. Plain data, so that it can travel."""

    function: TrainFunction
    rooms: list[int]
    """Bytes for PyTorch, of each GPU in question."""
    gpu: GpuSpec
    virtual: bool
    ranks: int
    printed: str
    """The file for what it prints, so that the terminal stays ours and its last words can be told."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One trace that is asked of it."""

    config: Config
    micro_batch: int | None
    in_hurry: bool
    """Else trials that run meanwhile go before it."""

    @property
    def patience(self) -> float:
        """Seconds until it is given up."""
        return PATIENCE if self.in_hurry else LONG_PATIENCE


class Tracer:
    """Traces one function for GPUs of one kind."""

    def __init__(self, function: TrainFunction, places: Sequence[Place], ranks: int) -> None:
        if not places[0].virtual:
            check_setting()
        self.places = list(places)
        self._printed = tempfile.NamedTemporaryFile(prefix="legroom-")  # noqa: SIM115  (lives as long as the tracer)
        self._order = TraceOrder(
            function=function,
            rooms=[place.room for place in places],
            gpu=places[0].spec,
            virtual=places[0].virtual,
            ranks=ranks,
            printed=self._printed.name,
        )
        self._server = fork_server(function)  # it imports from now on
        self._process: Forked | None = None
        self._is_killed = False

    def trace(self, config: Config, micro_batch: int | None, *, in_hurry: bool) -> Traced:
        """Trace two steps; raises `CannotEstimate`. `in_hurry`: else trials that run meanwhile go before it."""
        pipe, request = self._ready().pipe, TraceRequest(config, micro_batch, in_hurry)
        told: dict[str, Any] = {}
        try:
            pipe.send(request)
        except OSError:
            raise self._gone() from None
        while "done" not in told:
            told.update(self._reply(pipe, request.patience + 10))
        if "error" in told or "reserved" not in told:
            raise CannotEstimate(told.get("error", "its process died while it was traced"))
        del told["done"]
        return Traced(**told)

    def kill(self) -> None:
        """End the process and whatever it started; a trace that is being waited for fails."""
        self._is_killed = True
        if self._process is not None:
            ended(self._server, self._process.number, kill=True)

    def close(self) -> None:
        self.kill()
        if self._process is not None:
            self._process.pipe.close()
        self._printed.close()

    def _ready(self) -> Forked:
        if self._process is None:
            try:
                self._process = Forked.start(self._server, self._order)
            except ServerGone as gone:
                raise CannotEstimate(str(gone)) from None
            self._reply(self._process.pipe, PATIENCE)
        if self._is_killed:
            raise self._gone()
        return self._process

    def _reply(self, pipe: Connection, patience: float) -> dict[str, Any]:
        try:
            if not pipe.poll(patience):
                raise CannotEstimate(f"the process that traces did not answer for {patience:.0f} s")
            reply: dict[str, Any] = pipe.recv()
        except (EOFError, OSError):
            raise self._gone() from None
        return reply

    def _gone(self) -> CannotEstimate:
        lines = Path(self._printed.name).read_text(errors="replace").strip().splitlines()
        return CannotEstimate(lines[-1].strip() if lines else "the process that traces ended")
