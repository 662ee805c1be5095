"""`legroom.use("8GiB")`: a virtual GPU for the rest of a notebook or a script, without a `with` block."""

from legroom.errors import UsageError
from legroom.gpus.catalog import GpuSpec
from legroom.observe.dispatch.recorder import active_recorder
from legroom.observe.virtual.gpu import VirtualGPU

_in_use: VirtualGPU | None = None


def use(*gpus: str | int | GpuSpec | None) -> VirtualGPU | None:
    """Use a virtual GPU from now on. `legroom.use(None)` ends the virtual GPU.

    `gpus` contains sizes or names that `legroom.VirtualGPU` accepts. Another call replaces the virtual GPU. Tensors on
    the previous virtual GPU stay usable as CPU tensors.
    """
    global _in_use
    names = [gpu for gpu in gpus if gpu is not None]
    if not gpus or len(names) != len(gpus) > 1:
        raise UsageError(
            "Pass the size or the name of a GPU: `legroom.use('8GiB')`. `legroom.use(None)` deactivates the virtual GPU."
        )
    new = VirtualGPU(*names) if names else None  # an invalid size leaves the current virtual GPU unchanged
    active = VirtualGPU.active()
    recorder = active_recorder()
    is_recorded = recorder is not None and (recorder.allocations.followers or active is None)
    if is_recorded:
        raise UsageError("A recording is running. End the recording before you call `legroom.use`.")
    if _in_use is not None and active is _in_use:
        _in_use.__exit__()
    _in_use = None
    if new is not None:
        new.__enter__()
        _in_use = new
    return new
