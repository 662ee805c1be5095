"""Where torch hands over every operation: each is run, with CUDA's rules and stand-ins in force, and the recorder is told."""

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from legroom.observe.dispatch.backward_engine import in_backward_pass
from legroom.observe.dispatch.device_placement import INHERIT
from legroom.observe.fake.fake_tensors import ASKS_DEVICE, makes_from_nothing

if TYPE_CHECKING:
    from legroom.observe.dispatch.recorder import Recorder


class RecordingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """One thread's view: runs each operation, then tells the recorder."""

    supports_higher_order_operators = True
    """An operation that takes functions (flex attention) is one operation, as its kernel on CUDA is."""

    def __init__(self, recorder: "Recorder") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        stand_ins = self._recorder.stand_ins
        if func is ASKS_DEVICE and stand_ins is not None:  # asked by torch's own code all the time
            return stand_ins.device_of(args[0])
        if types and any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented  # the operations on its local tensor come by here as well
        with torch._C.DisableTorchFunction():
            if self._recorder.rules is not None:
                func = self._recorder.rules.instead_of(func, args, kwargs)
            if stand_ins is None:
                out = func(*args, **kwargs) if kwargs else func(*args)
            else:
                out = stand_ins.run(func, args, kwargs or {}, self._is_for_device(func))
            try:
                self._recorder.after(func, args, kwargs, out)
            except BaseException as error:
                # The traceback will hold this frame: let it hold none of the operation's tensors, nor our frames.
                args = kwargs = out = ()  # type: ignore[assignment]
                raise error.with_traceback(None) from None
        return out

    def _is_for_device(self, func: Any) -> bool:
        """Whether the results live on a device, whatever the inputs are: the call says so, or the backward pass makes it from nothing."""
        residence = self._recorder.residence
        if residence.context.target >= 0:
            return True
        if not makes_from_nothing(func) or not in_backward_pass():
            return False
        orphans = residence.context.orphans
        return (residence.backward_device if orphans == INHERIT else orphans) >= 0


class EagerMode(RecordingMode):  # type: ignore[no-untyped-call]
    """The same without the wrapper by which torch keeps the compiler out of a mode: nothing is compiled here."""


EagerMode.__torch_dispatch__ = inspect.unwrap(RecordingMode.__torch_dispatch__)  # type: ignore[method-assign]
