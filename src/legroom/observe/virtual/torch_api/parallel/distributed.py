"""Makes `torch.distributed` on virtual GPUs use gloo, which sends CPU tensors, instead of NCCL.

A process group can contain processes on several machines. Each process has its own virtual GPUs. The gradient buckets
of `DistributedDataParallel` are on the device of the model. `get_backend()` returns gloo. The memory of NCCL's buffers
is not counted. On an H200, one rank allocates 556 MiB for these buffers outside torch's allocator at its first
all-reduce.
"""

import functools
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import torch

from legroom.observe.virtual import single_rank
from legroom.observe.virtual.host import VirtualHost
from legroom.observe.virtual.patching import Replacement, answer, optional_module, table

GLOO_RELEASE_SECONDS = 0.1
"""The maximum time in seconds to wait until gloo's threads release tensors, before an out-of-memory error is raised. On
a busy machine, gloo still referenced the tensor for up to 7 ms after `wait()` returned, in 3 of 100 all-reduces of two
ranks. On a real GPU, this delay does not exist, because NCCL runs in the order of the GPU's streams.
"""


def is_rank() -> bool:
    distributed: Any = torch.distributed
    return bool(distributed.is_available() and distributed.is_initialized())


def replacements(host: VirtualHost) -> Iterable[Replacement]:
    """Return replacements that make process groups use gloo, or the fake backend if a single rank is traced.
    `device_id` is ignored."""
    yield from single_rank.replacements() if single_rank.is_enabled() else _groups_with_gloo()
    c10d, *importers = single_rank.modules_of_groups()
    barrier = getattr(c10d, "barrier", None)
    names: dict[str, Any] = {"is_nccl_available": answer(True)}
    if barrier is not None:
        names["barrier"] = _without(barrier, "device_ids")
    for owner in (c10d, *importers):
        yield from table(owner, names)
    for owner in (c10d, importers[0]):
        if owner is not None and not hasattr(owner, "ProcessGroupNCCL"):
            yield from table(owner, {"ProcessGroupNCCL": ProcessGroupNCCL}, add=True)
    parallel = getattr(optional_module("torch.nn.parallel"), "DistributedDataParallel", None)
    # These methods create the buckets, and create them again after the first step.
    for name in ("_ddp_init_helper", "_pre_forward"):
        original = getattr(parallel, name, None)
        if original is not None:
            yield from table(parallel, {name: _with_buckets_on_device(original, host)})


class ProcessGroupNCCL:
    """Replaces `torch.distributed.ProcessGroupNCCL` in torch builds without NCCL. The options of this class have no
    effect.
    """

    class Options:
        def __init__(self, *_arguments: Any, **options: Any) -> None:
            self.config = SimpleNamespace()
            vars(self).update(options)


def _groups_with_gloo() -> Iterable[Replacement]:
    c10d, *importers = single_rank.modules_of_groups()
    for name, position in (("init_process_group", 0), ("new_group", 2)):
        original = getattr(c10d, name, None)
        if original is not None:
            with_gloo = _with_gloo(original, position)
            for owner in (c10d, *importers):
                yield from table(owner, {name: with_gloo})


def _with_gloo(original: Any, position: int) -> Any:
    @functools.wraps(original)
    def make_group(*arguments: Any, **options: Any) -> Any:
        single = single_rank.early_name(original.__name__)
        if single is not None:
            return single(*arguments, **options)
        options.pop("device_id", None)
        options.pop("pg_options", None)
        if len(arguments) > position:
            changed = list(arguments)
            changed[position] = _gloo(changed[position])
            return original(*changed, **options)
        return original(*arguments, **{**options, "backend": _gloo(options.get("backend"))})

    return make_group


def _gloo(backend: Any) -> Any:
    return "gloo" if backend is None or "nccl" in str(backend).lower() else backend


def _with_buckets_on_device(original: Any, host: VirtualHost) -> Any:
    """Place the tensors that the C++ reducer creates on the device of the model's parameters."""

    @functools.wraps(original)
    def call(parallel: Any, *arguments: Any, **options: Any) -> Any:
        first = next(iter(parallel.module.parameters()), None)
        index = None if first is None else host.device_of(first)
        if index is None:
            return original(parallel, *arguments, **options)
        with host.factories_on(index):
            return original(parallel, *arguments, **options)

    return call


def _without(original: Any, option: str) -> Any:
    @functools.wraps(original)
    def call(*arguments: Any, **options: Any) -> Any:
        options.pop(option, None)
        return original(*arguments, **options)

    return call
