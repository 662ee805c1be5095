"""`torch.distributed` on virtual GPUs: what a script asks of NCCL is served by gloo, which talks between CPU tensors.

Processes of one machine or of several meet as ever; each has its own virtual GPUs. The buckets in which
`DistributedDataParallel` collects gradients live on its device. What is lost: `get_backend()` says gloo, and NCCL's own
buffers are not counted: 556 MiB outside of torch's allocator on an H200, measured for one rank at its first all-reduce.
"""

import functools
from collections.abc import Iterable
from typing import Any

import torch

from legroom.observe.virtual import single_rank
from legroom.observe.virtual.patching import Replacement, answer, optional_module, table

SECONDS_TO_LET_GO = 0.1
"""Patience with gloo's threads: `wait()` returns when a collective's result is there, and the thread that made it lets go of its tensor a moment later (3 of
100 all-reduces of two ranks, up to 7 ms on a busy machine). NCCL works in the order of the GPU's streams and holds nothing up."""


def ranks_talk() -> bool:
    """Whether this process is one of a group."""
    distributed: Any = torch.distributed
    return bool(distributed.is_available() and distributed.is_initialized())


def replacements() -> Iterable[Replacement]:
    """Groups are made with gloo, or of a rank that is traced alone; collectives forget which device they were bound to."""
    yield from single_rank.replacements() if single_rank.is_wanted() else _groups_with_gloo()
    distributed, c10d = _modules()
    barrier = getattr(c10d, "barrier", None)
    if barrier is not None:
        anywhere = _without(barrier, "device_ids")
        yield from table(c10d, {"barrier": anywhere})
        yield from table(distributed, {"barrier": anywhere})
    for owner in (c10d, distributed):
        yield from table(owner, {"is_nccl_available": answer(True)})
    parallel = getattr(optional_module("torch.nn.parallel"), "DistributedDataParallel", None)
    # Where buckets are made, and made anew after the first step.
    for name in ("_ddp_init_helper", "_pre_forward"):
        plain = getattr(parallel, name, None)
        if plain is not None:
            yield from table(parallel, {name: _buckets_on_its_device(plain)})


def _modules() -> tuple[Any, Any]:
    return optional_module("torch.distributed"), optional_module("torch.distributed.distributed_c10d")


def _groups_with_gloo() -> Iterable[Replacement]:
    distributed, c10d = _modules()
    for name, position in (("init_process_group", 0), ("new_group", 2)):
        plain = getattr(c10d, name, None)
        if plain is not None:
            with_gloo = _with_gloo(plain, position)
            yield from table(c10d, {name: with_gloo})
            yield from table(distributed, {name: with_gloo})


def _with_gloo(plain: Any, position: int) -> Any:
    @functools.wraps(plain)
    def make_group(*arguments: Any, **options: Any) -> Any:
        options.pop("device_id", None)
        options.pop("pg_options", None)
        if len(arguments) > position:
            words = list(arguments)
            words[position] = _gloo(words[position])
            return plain(*words, **options)
        return plain(*arguments, **{**options, "backend": _gloo(options.get("backend"))})

    return make_group


def _gloo(backend: Any) -> Any:
    """gloo for NCCL, for a list of devices with NCCL among them, and for no wish at all."""
    return "gloo" if backend is None or "nccl" in str(backend).lower() else backend


def _buckets_on_its_device(plain: Any) -> Any:
    """What the C++ reducer makes from nothing lives where the model's parameters live."""

    @functools.wraps(plain)
    def call(parallel: Any, *arguments: Any, **options: Any) -> Any:
        from legroom.observe.virtual.gpu import VirtualGPU

        active = VirtualGPU._active
        index = None
        if active is not None:
            first = next(iter(parallel.module.parameters()), None)
            index = None if first is None else active.recorder.device_of(first)
        if active is None or index is None:
            return plain(parallel, *arguments, **options)
        context = active.recorder.context
        outer = context.factory_target
        context.factory_target = index
        try:
            return plain(parallel, *arguments, **options)
        finally:
            context.factory_target = outer

    return call


def _without(plain: Any, option: str) -> Any:
    @functools.wraps(plain)
    def call(*arguments: Any, **options: Any) -> Any:
        options.pop(option, None)
        return plain(*arguments, **options)

    return call
