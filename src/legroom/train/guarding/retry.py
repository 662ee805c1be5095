"""A torch function mode that repeats functions that run out of memory.

If an optimizer step fails halfway, some tensors are modified in place and others are not. Undoing the modifications
would require a copy of all tensors before every step. With this mode, no copy is needed, because the step does not fail
halfway.

If a torch function runs out of memory, the cache is emptied and the function is called again. If the function fails
again, tensors that the function does not need are moved to host memory. The moved tensors return to the device when a
function needs them, and when the mode exits.

The result is exact, because a function that cannot allocate its result has not changed anything. An out-of-memory
error is raised only if the operands and the result of a single function do not fit.
"""

import functools
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from legroom.observe.dispatch.storages import tensors_in
from legroom.train.guarding.recovery import classify_failure, empty_cache, release_memory
from legroom.train.guarding.state.random_state import RandomState


class RetryOnOOM(TorchFunctionMode):
    """A torch function mode that repeats functions that run out of memory on `device`. `offloadable()` returns the
    tensors that may be moved to host memory.
    """

    def __init__(self, offloadable: Callable[[], Iterable[torch.Tensor]], device: torch.device) -> None:
        super().__init__()
        self._offloadable = offloadable
        self._device = device
        self._offloaded: dict[int, _Offloaded] = {}
        self.retries = 0
        self.offloaded_bytes = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if type(func) is _GETTER:  # reading a tensor property computes nothing and is frequent
            return func(*args)
        if self._offloaded:
            self._restore_operands(tensors_in((args, kwargs)))
        elif func in _NO_ALLOCATION:
            return func(*args)
        random_state = RandomState(self._device, with_numpy=False) if _is_random(func) else None
        to_free = 0
        while True:
            try:
                return func(*args, **kwargs) if kwargs else func(*args)
            except RuntimeError as error:
                failure = classify_failure(error)
                if not failure.is_oom:
                    raise
                if to_free and not self._can_offload(args, kwargs):
                    raise
            self.retries += 1
            if to_free:
                self._offload(to_free, _keys((args, kwargs)))
                to_free *= 2
            else:
                release_memory()
                to_free = max(failure.requested or 0, _MIN_OFFLOAD)
            if random_state is not None:
                random_state.restore()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        if self._offloaded:
            empty_cache()
            self.restore_all()

    # --- offloaded tensors

    def restore_all(self) -> None:
        """Move all offloaded tensors back to the device. Tensors that were freed in the meantime, such as gradients at
        the end of a step, are skipped.
        """
        alive = {_key(tensor) for tensor in self._offloadable()}
        try:
            for offloaded in list(self._offloaded.values()):
                if offloaded.key in alive:
                    self._restore(offloaded)
                else:
                    del self._offloaded[offloaded.key]
        except RuntimeError:
            self._leave_on_host()
            raise

    @torch.no_grad()
    def _leave_on_host(self) -> None:
        """Keep the offloaded tensors in host memory, because they do not fit on the device. No values are lost."""
        for tensor in list(self._offloadable()):
            local = getattr(tensor, "_local_tensor", tensor)
            offloaded = self._offloaded.get(_key(local))
            if offloaded is not None:
                host = torch.empty(0, dtype=local.dtype)
                host.set_(
                    offloaded.host.untyped_storage(), local.storage_offset(), local.size(), local.stride()
                )
                local.data = host
        self._offloaded.clear()

    def _restore_operands(self, tensors: Iterable[torch.Tensor]) -> None:
        operands = {_key(tensor) for tensor in tensors}  # no operand may be offloaded
        for offloaded in [self._offloaded[key] for key in operands if key in self._offloaded]:
            to_free = offloaded.nbytes
            while True:
                try:
                    self._restore(offloaded)
                    break
                except RuntimeError as error:
                    if not classify_failure(error).is_oom or not any(
                        key not in operands for key in self._storages() if key not in self._offloaded
                    ):
                        raise
                self._offload(to_free, operands)
                to_free *= 2

    def _restore(self, offloaded: "_Offloaded") -> None:
        offloaded.storage.resize_(offloaded.nbytes)
        _bytes_of(offloaded.storage, self._device).copy_(offloaded.host)
        del self._offloaded[offloaded.key]

    def _can_offload(self, args: Any, kwargs: Any) -> bool:
        operands = _keys((args, kwargs))
        return any(key not in operands and key not in self._offloaded for key in self._storages())

    def _offload(self, to_free: int, operands: set[int]) -> None:
        """Offload the largest storages that are not in `operands`, until `to_free` bytes are free or no storage is
        left.
        """
        candidates = [
            storage
            for key, storage in self._storages().items()
            if key not in operands and key not in self._offloaded
        ]
        candidates.sort(key=lambda storage: -storage.nbytes())
        for storage in candidates:
            if to_free <= 0:
                break
            nbytes = storage.nbytes()
            to_free -= nbytes
            host = _bytes_of(storage, self._device).cpu()
            storage.resize_(0)
            self._offloaded[storage._cdata] = _Offloaded(storage, host, nbytes)
            self.offloaded_bytes += nbytes
        empty_cache()

    def _storages(self) -> dict[int, torch.UntypedStorage]:
        found = {}
        for tensor in self._offloadable():
            local = getattr(tensor, "_local_tensor", tensor)
            if local.device.type == self._device.type and local.layout == torch.strided:
                storage = local.untyped_storage()
                if storage.nbytes():
                    found[storage._cdata] = storage
        return found


class _Offloaded:
    """A storage that was emptied, and its contents in host memory."""

    __slots__ = ("host", "key", "nbytes", "storage")

    def __init__(self, storage: torch.UntypedStorage, host: torch.Tensor, nbytes: int) -> None:
        self.storage, self.host, self.nbytes = storage, host, nbytes
        self.key = storage._cdata


_MIN_OFFLOAD = 1 << 20
_RANDOM_FUNCTIONS = (
    "rand",
    "normal",
    "bernoulli",
    "dropout",
    "multinomial",
    "poisson",
    "uniform",
    "exponential",
)
_GETTER = type(torch.Tensor.shape.__get__)  # type: ignore[attr-defined]
_NO_ALLOCATION = frozenset({torch.Tensor.item, torch.is_complex, torch.Tensor.is_complex})
"""Functions that allocate no memory and that optimizers call for every parameter. To save time, these functions are
not retried.
"""


@functools.cache
def _is_random(func: Any) -> bool:
    """Return True if a function draws random numbers. A random function that fails may already have drawn numbers, so
    the generator states are restored before the function is called again.
    """
    name = getattr(func, "__name__", "")
    return any(word in name for word in _RANDOM_FUNCTIONS)


def _bytes_of(storage: torch.UntypedStorage, device: torch.device) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)


def _key(tensor: torch.Tensor) -> int:
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return local.untyped_storage()._cdata if local.layout == torch.strided else 0


def _keys(values: Any) -> set[int]:
    return {_key(tensor) for tensor in tensors_in(values)}
