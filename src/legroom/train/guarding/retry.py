"""A stretch of work that must not be left half done: a function that runs out of memory there is called again, with room made.

An optimizer that fails half way has changed some numbers and not others, in place; nothing can undo that, short of a copy
of everything before every step. So it does not fail half way. Under this mode each torch function that runs out of memory
is called once more on the spot, first after the cache was given back, then after tensors that it does not need were moved
to host memory. They come back when a function needs them, and at the end.

That is exact: a function that fails to get memory for its result has changed nothing. What remains is a function whose own
operands and result do not fit; then the error passes.
"""

import functools
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from legroom.observe.dispatch.storages import tensors_in
from legroom.train.guarding.recovery import empty_cache, read_failure, release
from legroom.train.guarding.state.random_state import RandomState


class MakingRoom(TorchFunctionMode):
    """`movable()` gives the tensors that may be moved out; `device` is where memory is short."""

    def __init__(self, movable: Callable[[], Iterable[torch.Tensor]], device: torch.device) -> None:
        super().__init__()
        self._movable = movable
        self._device = device
        self._away: dict[int, _Moved] = {}
        self.retries = 0
        """How many functions ran out of memory and were called again."""
        self.moved_bytes = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if type(func) is _GETTER:  # a tensor's property: nothing is computed, and there are thousands of them
            return func(*args)
        if self._away:
            self._bring_back(tensors_in((args, kwargs)))
        elif func in _ASKS:
            return func(*args)
        drawn = RandomState(self._device, with_numpy=False) if _draws(func) else None
        wanted = 0
        while True:
            try:
                return func(*args, **kwargs) if kwargs else func(*args)
            except RuntimeError as error:
                failure = read_failure(error)
                if not failure.is_oom:
                    raise
                if wanted and not self._has_movable(args, kwargs):
                    raise
            self.retries += 1
            if wanted:
                self._move_out(wanted, args, kwargs)
                wanted *= 2
            else:
                release()
                wanted = max(failure.requested or 0, _LEAST_MOVED)
            if drawn is not None:
                drawn.restore()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        if self._away:
            empty_cache()
            self.bring_all_back()

    # --- tensors in host memory for a while

    def bring_all_back(self) -> None:
        """All but what has died meanwhile, as gradients do when a step ends."""
        living = {_key(tensor) for tensor in self._movable()}
        try:
            for moved in list(self._away.values()):
                if moved.key in living:
                    self._return(moved)
                else:
                    del self._away[moved.key]
        except RuntimeError:
            self._leave_on_host()
            raise

    @torch.no_grad()
    def _leave_on_host(self) -> None:
        """There is no room to come back to: the tensors live in host memory from now on, so that no number is lost."""
        for tensor in list(self._movable()):
            local = getattr(tensor, "_local_tensor", tensor)
            moved = self._away.get(_key(local))
            if moved is not None:
                host = torch.empty(0, dtype=local.dtype)
                host.set_(moved.host.untyped_storage(), local.storage_offset(), local.size(), local.stride())
                local.data = host
        self._away.clear()

    def _bring_back(self, tensors: Iterable[torch.Tensor]) -> None:
        keep = {
            _key(tensor) for tensor in tensors
        }  # operands that are here must not make way for those that are not
        needed = [self._away[key] for key in keep if key in self._away]
        for moved in needed:
            wanted = moved.nbytes
            while True:
                try:
                    self._return(moved)
                    break
                except RuntimeError as error:
                    if not read_failure(error).is_oom or not any(
                        key not in keep for key in self._storages() if key not in self._away
                    ):
                        raise
                self._move_until(wanted, keep)
                wanted *= 2

    def _return(self, moved: "_Moved") -> None:
        moved.storage.resize_(moved.nbytes)
        _bytes_of(moved.storage, self._device).copy_(moved.host)
        del self._away[moved.key]

    def _has_movable(self, args: Any, kwargs: Any) -> bool:
        keep = {_key(tensor) for tensor in tensors_in((args, kwargs))}
        return any(key not in keep and key not in self._away for key in self._storages())

    def _move_out(self, wanted: int, args: Any, kwargs: Any) -> None:
        self._move_until(wanted, {_key(tensor) for tensor in tensors_in((args, kwargs))})

    def _move_until(self, wanted: int, keep: set[int]) -> None:
        """Move the largest first, until `wanted` bytes are free or nothing is left to move."""
        candidates = [
            storage for key, storage in self._storages().items() if key not in keep and key not in self._away
        ]
        candidates.sort(key=lambda storage: -storage.nbytes())
        for storage in candidates:
            if wanted <= 0:
                break
            wanted -= storage.nbytes()
            self._move(storage)
        empty_cache()

    def _move(self, storage: torch.UntypedStorage) -> None:
        nbytes = storage.nbytes()
        host = _bytes_of(storage, self._device).cpu()
        storage.resize_(0)
        self._away[storage._cdata] = _Moved(storage, host, nbytes)
        self.moved_bytes += nbytes

    def _storages(self) -> dict[int, torch.UntypedStorage]:
        found = {}
        for tensor in self._movable():
            local = getattr(tensor, "_local_tensor", tensor)
            if local.device.type == self._device.type and local.layout == torch.strided:
                storage = local.untyped_storage()
                if storage.nbytes():
                    found[storage._cdata] = storage
        return found


class _Moved:
    """A storage that is empty for now, and what was in it."""

    __slots__ = ("host", "key", "nbytes", "storage")

    def __init__(self, storage: torch.UntypedStorage, host: torch.Tensor, nbytes: int) -> None:
        self.storage, self.host, self.nbytes = storage, host, nbytes
        self.key = storage._cdata


_LEAST_MOVED = 1 << 20
_RANDOM = ("rand", "normal", "bernoulli", "dropout", "multinomial", "poisson", "uniform", "exponential")


_GETTER = type(torch.Tensor.shape.__get__)  # type: ignore[attr-defined]
_ASKS = frozenset({torch.Tensor.item, torch.is_complex, torch.Tensor.is_complex})
"""Functions of one argument that need no memory; an optimizer calls them for every parameter."""


@functools.cache
def _draws(func: Any) -> bool:
    """A function that draws random numbers may have drawn them before it failed."""
    name = getattr(func, "__name__", "")
    return any(word in name for word in _RANDOM)


def _bytes_of(storage: torch.UntypedStorage, device: torch.device) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)


def _key(tensor: torch.Tensor) -> int:
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return local.untyped_storage()._cdata if local.layout == torch.strided else 0
