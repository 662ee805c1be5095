"""A function of a batch, run in pieces when memory is short: evaluation, embedding, anything without an optimizer.

It has sizes of its own, since it needs far less memory than training. Pieces shrink down to one row; then, where that is
allowed, the model goes to the host for the rest of the batch, and comes back. Where parameters are sharded over ranks (FSDP2)
every forward pass needs all of them: then the ranks cut their batches into the same number of pieces and, when one runs out
of memory, all do it again in more.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from legroom.diagnose.oom.recognize import ErrorClassification
from legroom.log import log
from legroom.train.guarding.batches.splitting import Batch, joined, moved
from legroom.train.guarding.batches.weighting import spans
from legroom.train.guarding.recovery import read_failure, release
from legroom.train.guarding.single_sample import DoesNotFit
from legroom.train.guarding.state.random_state import RandomState
from legroom.train.ranks.coordination import AgreedRanks, Alone
from legroom.train.sizes.micro_batch_size import Sizer, chunk_sizes, even


class Evaluation:
    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        most: int | None,
        batch_dim: int,
        whole: frozenset[int | str],
        ranks: AgreedRanks | None = None,
    ) -> None:
        self._model, self._device, self._ranks = model, device, ranks or Alone()
        self._most, self._batch_dim, self._whole = most, batch_dim, whole
        self.sizer = Sizer(most=most)

    def decorated(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def in_pieces(*batch: Any, **named: Any) -> Any:
            return self.run(function, batch, named, host=False)

        return in_pieces

    def evaluate(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        """The function's result for the whole batch, without gradients, as all ranks need it."""
        ranks = self._ranks.for_evaluation()
        if isinstance(ranks, Alone):
            with torch.inference_mode(), self._ranks.apart():
                return self.run(function, arguments, named, host=True)
        # What is gathered in inference mode, training could not use.
        with torch.no_grad(), self._ranks.apart():
            return self._agreed(function, Batch(arguments, named, self._batch_dim, self._whole), ranks)

    def _agreed(self, function: Callable[..., Any], batch: Batch, ranks: AgreedRanks) -> Any:
        """In as many pieces as every other rank takes."""
        micro = self.sizer.micro_batch(batch.rows)
        while True:
            chunks = ranks.plan(batch.rows, micro).chunks
            sizes = even(batch.rows, min(chunks, batch.rows))
            before = RandomState(self._device)
            results, failure, void = self._attempt(function, batch, sizes, chunks, ranks)
            if failure is not None:
                release()
                ranks.failed(failure)
                largest = max(sizes)
                smaller = self.sizer.failed(batch.rows, largest, failure) if largest > 1 else 0
                void = ranks.settle(failure, smaller)
            elif void is None:
                void = ranks.settle(None, micro)
                if void is None:
                    self.sizer.succeeded(batch.rows, max(sizes))
                    return joined(results, sizes, self._batch_dim)
            results.clear()
            before.restore()
            if void == 0:
                raise DoesNotFit(
                    "one row does not fit in an evaluation, on this rank or another, and parameters that are sharded "
                    "cannot wait in host memory: shard over more ranks, or evaluate in lower precision"
                )
            assert void is not None
            micro = void
            log.warning(
                "Out of memory on a rank: the batch of %d rows is evaluated %d at a time.", batch.rows, micro
            )

    def _attempt(
        self, function: Callable[..., Any], batch: Batch, sizes: list[int], chunks: int, ranks: AgreedRanks
    ) -> tuple[list[Any], ErrorClassification | None, int | None]:
        """The results; or what failed here; or the size that was agreed because an error here came of a failure elsewhere."""
        results: list[Any] = []
        edges = spans(sizes)
        try:
            for index in range(chunks):
                start, stop = edges[index] if index < len(edges) else (0, 1)  # others have more: any row does
                arguments, named = batch.piece(start, stop)
                with ranks.chunk(index, chunks, "evaluation"):
                    result = function(*arguments, **named)
                if index < len(edges):
                    results.append(result)
            return results, None, None
        except Exception as error:
            failure = read_failure(error)
            if not failure.is_oom:
                void = ranks.raised(error)
                if void is None:
                    raise
                return [], None, void
        return [], failure, None

    def run(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any], *, host: bool
    ) -> Any:
        """The same for this process alone, gradients as the caller has them; what is done stays done. `host`: the host may
        help when one row does not fit."""
        batch = Batch(arguments, named, self._batch_dim, self._whole)
        sizes: list[int] = []
        results: list[Any] = []
        micro = self.sizer.micro_batch(batch.rows)
        while sum(sizes) < batch.rows:
            start = sum(sizes)
            size = chunk_sizes(batch.rows - start, min(micro, batch.rows - start))[0]
            before = RandomState(self._device)
            result, failure, error = self._piece(
                function, batch, start, start + size, keep_error=size == 1 and not host
            )
            if failure is None:
                sizes.append(size)
                results.append(result)
                continue
            if error is not None:
                raise error
            release()
            before.restore()
            if size > 1:
                micro = self.sizer.failed(batch.rows, size, failure)
                log.warning(
                    "Out of memory: the batch of %d rows is evaluated %d at a time.", batch.rows, micro
                )
                continue
            log.warning("One row did not fit: the rest of this batch is evaluated on the host, slowly.")
            with self._on_host():
                rest = batch.piece(start, batch.rows)
                results.append(moved(function(*moved(rest[0], _HOST), **moved(rest[1], _HOST)), _HOST))
            results = [moved(result, _HOST) for result in results]
            sizes.append(batch.rows - start)
        self.sizer.succeeded(batch.rows, max(sizes))
        return joined(results, sizes, self._batch_dim)

    def _piece(
        self, function: Callable[..., Any], batch: Batch, start: int, stop: int, *, keep_error: bool
    ) -> tuple[Any, ErrorClassification | None, Exception | None]:
        try:
            arguments, named = batch.piece(start, stop)
            return function(*arguments, **named), None, None
        except Exception as error:
            failure = read_failure(error)
            if not failure.is_oom or keep_error:
                raise
        return None, failure, None

    @contextmanager
    def _on_host(self) -> Iterator[None]:
        """The model in host memory for a while: the same parameters, elsewhere."""
        with torch.inference_mode(False), torch.no_grad():
            self._model.to(_HOST)
        release()
        try:
            yield
        finally:
            with torch.inference_mode(False), torch.no_grad():
                self._model.to(self._device)


_HOST = torch.device("cpu")
