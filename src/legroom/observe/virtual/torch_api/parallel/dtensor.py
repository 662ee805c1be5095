"""Random numbers in sharded tensors (`DTensor`). FSDP2 and tensor parallelism need random numbers for initial
parameters and dropout.

On CUDA, each rank advances the generator of its GPU to the offset of its shard. A virtual GPU uses the generator of
the CPU, which has no offsets. Instead, each shard has its own seed. Therefore replicas of the same shard get equal
numbers, and different shards get different numbers. The generators of all ranks stay in the same state. A tensor with
a single shard gets the same numbers as a plain tensor.
"""

import contextlib
import functools
import hashlib
import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from legroom.observe.virtual.patching import Replacement, optional_module, replaced, table


@contextlib.contextmanager
def sharded_random_numbers() -> Iterator[None]:
    """Replace torch's tracker of random offsets when the first device mesh is created. The tracker is not replaced
    earlier, because its module takes a second to import.
    """
    mesh: Any = getattr(optional_module("torch.distributed.device_mesh"), "DeviceMesh", None)
    if mesh is None:
        yield
        return
    original = mesh.__init__
    with contextlib.ExitStack() as stack:

        @functools.cache
        def replace_tracker() -> None:
            stack.enter_context(replaced(_tracker()))

        @functools.wraps(original)
        def init(self: Any, *arguments: Any, **options: Any) -> None:
            original(self, *arguments, **options)
            replace_tracker()

        stack.enter_context(replaced(table(mesh, {"__init__": init})))
        yield


def _tracker() -> Iterable[Replacement]:
    random = optional_module("torch.distributed.tensor._random")
    tracker: Any = getattr(random, "OffsetBasedRNGTracker", None)
    base: Any = getattr(random, "_RNGStateTracker", None)
    if tracker is None or base is None:
        return

    takes_type = "device_type" in inspect.signature(base.__init__).parameters  # torch 2.6

    def init(self: Any, *_arguments: Any, **_options: Any) -> None:
        # PyTorch's own tracker would also compare the state of the generator with the state on rank 0.
        base.__init__(self, "cuda" if takes_type else torch.device("cuda", torch.cuda.current_device()))

    yield from table(tracker, {"__init__": init, "_distribute_region": _distribute_region})
    yield from table(random, {"_rng_tracker": None})


@contextlib.contextmanager
def _distribute_region(tracker: Any, spec: Any, generator: Any = None) -> Iterator[None]:
    """Inside the `with` block, random operations draw the numbers of this rank's shard, from `generator` if it is
    given.
    """
    default = torch.default_generator
    outer = None if generator is None else default.get_state()
    if generator is not None:
        default.set_state(generator.get_state())
    index, shards = _shard(spec)
    try:
        if shards == 1 or not tracker.distribute_region_enabled:
            yield
        else:
            digest = hashlib.blake2b(default.get_state().numpy().tobytes(), digest_size=6).digest()
            seed = int.from_bytes(digest, "little")
            default.manual_seed(seed + 1 + index)
            yield
            default.manual_seed(seed)
        if generator is not None:
            generator.set_state(default.get_state())
    finally:
        if outer is not None:
            default.set_state(outer)


def _shard(spec: Any) -> tuple[int, int]:
    index, shards = 0, 1
    coordinate = spec.mesh.get_coordinate()
    for dimension, placement in enumerate(spec.placements):
        if coordinate is not None and placement.is_shard():
            size = spec.mesh.size(dimension)
            index, shards = index * size + coordinate[dimension], shards * size
    return index, shards
