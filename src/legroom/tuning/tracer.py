"""The other end of `trial_tracing`: what a configuration asks of memory, traced in a process that stands by."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from legroom.predict.standing_by import start_standing_by
from legroom.tuning.admission import Place
from legroom.tuning.function import TrainFunction
from legroom.tuning.space import Config

PATIENCE = 120.0
"""Seconds for one trace; what takes longer runs without an estimate."""


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


class Tracer:
    """Traces one function for GPUs of one kind."""

    def __init__(self, function: TrainFunction, places: Sequence[Place], ranks: int) -> None:
        self.places = list(places)
        order = {
            "function": asdict(function), "rooms": [place.room for place in places], "virtual": places[0].virtual,
            "gpu": places[0].memory if places[0].virtual else places[0].model, "ranks": ranks,
        }  # fmt: skip
        self._process = start_standing_by("legroom.tuning.trial_tracing", order)
        self._is_ready = False

    def trace(self, config: Config, micro_batch: int | None) -> Traced:
        """Trace two steps; raises `CannotEstimate`."""
        if not self._is_ready:
            self._reply(PATIENCE)
            self._is_ready = True
        request = {"number": 0, "config": config, "micro_batch": micro_batch, "patience": PATIENCE}
        try:
            self._process.ask(request)
        except EOFError:
            raise self._gone() from None
        told: dict[str, Any] = {}
        while "done" not in told:
            told.update(self._reply(PATIENCE + 10))
        if "error" in told or "reserved" not in told:
            raise CannotEstimate(told.get("error", "its process died while it was traced"))
        del told["done"]
        return Traced(**{**told, "fits": tuple(told["fits"])})

    def kill(self) -> None:
        """End the process and whatever it started; a trace that is being waited for fails."""
        self._process.kill()

    def close(self) -> None:
        self._process.close()

    def _reply(self, patience: float) -> dict[str, Any]:
        try:
            reply = self._process.reply(patience)
        except EOFError:
            raise self._gone() from None
        if reply is None:
            raise CannotEstimate(f"the process that traces did not answer for {patience:.0f} s")
        return reply

    def _gone(self) -> CannotEstimate:
        return CannotEstimate(self._process.last_words or "the process that traces ended")
