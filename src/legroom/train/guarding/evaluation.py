"""Runs an evaluation, or another function without an optimizer, on a batch. If memory is short, the function runs in
micro-batches.

Evaluation has its own micro-batch sizes, because it needs much less memory than training. If memory runs out, the
micro-batch size is reduced, to one sample if necessary. If a single sample does not fit and the CPU is allowed, the
model is moved to the CPU for the remaining samples of the batch. If parameters are sharded across ranks (FSDP2), every
forward pass needs all ranks, so all ranks use the same number of micro-batches. If one rank runs out of memory, all
ranks repeat the batch with more micro-batches.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from legroom.diagnose.oom.recognize import ErrorClassification
from legroom.log import log
from legroom.train.guarding.batches.splitting import BatchArguments, concatenate_results, to_device
from legroom.train.guarding.batches.weighting import spans
from legroom.train.guarding.fallbacks import DoesNotFit
from legroom.train.guarding.recovery import classify_failure, release_memory, use_expandable_segments
from legroom.train.guarding.state.random_state import RandomState
from legroom.train.ranks.protocol import RankCoordinator, SingleProcess
from legroom.train.sizes.micro_batch_size import MicroBatchSizer, even_split, micro_batch_sizes


class Evaluation:
    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        max_micro_batch_size: int | None,
        batch_dim: int,
        unsplit: frozenset[int | str],
        ranks: RankCoordinator | None = None,
    ) -> None:
        self._model, self._device, self._ranks = model, device, ranks or SingleProcess()
        self._batch_dim, self._unsplit = batch_dim, unsplit
        self.sizer = MicroBatchSizer(max_size=max_micro_batch_size)

    def decorated(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def in_micro_batches(*batch: Any, **named: Any) -> Any:
            return self.run(function, batch, named, allow_cpu=False)

        return in_micro_batches

    def evaluate(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        """Return the function's result for the whole batch, without gradients. With sharded parameters, all ranks must
        call this method."""
        ranks = self._ranks.for_evaluation()
        if isinstance(ranks, SingleProcess):
            with torch.inference_mode(), self._ranks.no_sync():
                return self.run(function, arguments, named, allow_cpu=True)
        # Training cannot use parameters gathered in inference mode.
        with torch.no_grad(), self._ranks.no_sync():
            batch = BatchArguments(arguments, named, self._batch_dim, self._unsplit)
            return self._run_with_ranks(function, batch, ranks)

    def _run_with_ranks(
        self, function: Callable[..., Any], batch: BatchArguments, ranks: RankCoordinator
    ) -> Any:
        micro = self.sizer.micro_batch(batch.batch_size)
        while True:
            passes = ranks.plan(batch.batch_size, micro).passes
            sizes = even_split(batch.batch_size, min(passes, batch.batch_size))
            random_state = RandomState(self._device)
            results, failure, retry_size = self._attempt(function, batch, sizes, passes, ranks)
            if failure is not None:
                release_memory()
                ranks.complete_pending(failure)
                largest = max(sizes)
                retry_size = ranks.agree(failure, self._smaller(batch.batch_size, largest, failure))
            elif retry_size is None:
                retry_size = ranks.agree(None, micro)
                if retry_size is None:
                    self.sizer.succeeded(batch.batch_size, max(sizes))
                    return concatenate_results(results, sizes, self._batch_dim)
            results.clear()
            random_state.restore()
            if retry_size == 0:
                raise DoesNotFit(
                    "A single sample does not fit during evaluation on at least one rank, and sharded parameters cannot be "
                    "moved to the CPU. Shard the model across more ranks, or evaluate in lower precision."
                )
            assert retry_size is not None
            micro = retry_size
            log.warning(
                "A rank ran out of memory. Evaluating the batch of %d in micro-batches of %d.",
                batch.batch_size,
                micro,
            )

    def _attempt(
        self,
        function: Callable[..., Any],
        batch: BatchArguments,
        sizes: list[int],
        passes: int,
        ranks: RankCoordinator,
    ) -> tuple[list[Any], ErrorClassification | None, int | None]:
        """Return the results, the out-of-memory error on this rank, and the micro-batch size for a retry. The error is
        None if this rank did not run out of memory. The size is None unless another rank made the attempt invalid.
        """
        results: list[Any] = []
        edges = spans(sizes)
        try:
            for index in range(passes):
                # If other ranks run more passes, any sample will do.
                start, stop = edges[index] if index < len(edges) else (0, 1)
                arguments, named = batch.slice(start, stop)
                with ranks.micro_batch(index, passes, "evaluation"):
                    result = function(*arguments, **named)
                if index < len(edges):
                    results.append(result)
            return results, None, None
        except Exception as error:
            failure = classify_failure(error)
            if not failure.is_oom:
                retry_size = ranks.report_error(error)
                if retry_size is None:
                    raise
                return [], None, retry_size
        return [], failure, None

    def run(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        named: dict[str, Any],
        *,
        allow_cpu: bool,
    ) -> Any:
        """Run the function in this process only, in the caller's gradient mode. Results of finished micro-batches are
        kept after a failure.

        With `allow_cpu`, the CPU is used if a single sample does not fit.
        """
        batch = BatchArguments(arguments, named, self._batch_dim, self._unsplit)
        sizes: list[int] = []
        results: list[Any] = []
        micro = self.sizer.micro_batch(batch.batch_size)
        while sum(sizes) < batch.batch_size:
            start = sum(sizes)
            size = micro_batch_sizes(batch.batch_size - start, min(micro, batch.batch_size - start))[0]
            random_state = RandomState(self._device)
            result, failure = self._run_micro_batch(
                function, batch, start, start + size, raise_oom=size == 1 and not allow_cpu
            )
            if failure is None:
                sizes.append(size)
                results.append(result)
                continue
            release_memory()
            random_state.restore()
            smaller = self._smaller(batch.batch_size, size, failure)
            if smaller:
                micro = smaller
                log.warning(
                    "Out of memory. Evaluating the batch of %d in micro-batches of %d.",
                    batch.batch_size,
                    micro,
                )
                continue
            log.warning(
                "A single sample did not fit. Evaluating the rest of this batch on the CPU, which is slow."
            )
            with self._model_on_cpu():
                rest = batch.slice(start, batch.batch_size)
                results.append(
                    to_device(function(*to_device(rest[0], _CPU), **to_device(rest[1], _CPU)), _CPU)
                )
            results = [to_device(result, _CPU) for result in results]
            sizes.append(batch.batch_size - start)
        self.sizer.succeeded(batch.batch_size, max(sizes))
        return concatenate_results(results, sizes, self._batch_dim)

    def _smaller(self, batch_size: int, size: int, failure: ErrorClassification) -> int:
        if self.sizer.may_retry(size, failure):
            use_expandable_segments(self._device)
            return size
        return self.sizer.failed(batch_size, size, failure) if size > 1 else 0

    def _run_micro_batch(
        self, function: Callable[..., Any], batch: BatchArguments, start: int, stop: int, *, raise_oom: bool
    ) -> tuple[Any, ErrorClassification | None]:
        try:
            arguments, named = batch.slice(start, stop)
            return function(*arguments, **named), None
        except Exception as error:
            failure = classify_failure(error)
            if not failure.is_oom or raise_oom:
                raise
        return None, failure

    @contextmanager
    def _model_on_cpu(self) -> Iterator[None]:
        with torch.inference_mode(False), torch.no_grad():
            self._model.to(_CPU)
        release_memory()
        try:
            yield
        finally:
            with torch.inference_mode(False), torch.no_grad():
                self._model.to(self._device)


_CPU = torch.device("cpu")
