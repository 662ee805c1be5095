"""Random numbers on a virtual GPU come from the CPU's generator.

A run on a virtual GPU returns bit-for-bit the same results as the same script on the CPU. The default generator of a
virtual device stores and returns its seed, but draws no numbers. The state that scripts save, restore and fork is the
state of the CPU's generator. Therefore `torch.cuda.manual_seed` alone does not make a run reproducible. Use
`torch.manual_seed`.

`torch.Generator(device="cuda")` is an independent generator with its own seed, as usual.
"""

import contextlib
import secrets
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from legroom.observe.virtual.host import VirtualHost
from legroom.observe.virtual.patching import Replacement, table
from legroom.observe.virtual.torch_api.devices import index_of

DEFAULT_SEED = 67280421310721


@contextlib.contextmanager
def generators(host: VirtualHost) -> Iterator[Iterable[Replacement]]:
    defaults = tuple(_DefaultGenerator.for_device(device.index) for device in host.devices)
    is_active = [True]
    try:
        yield [
            *table(torch.cuda, {"default_generators": defaults}),
            *table(torch, {"Generator": _generator_class(host, is_active)}),
        ]
    finally:
        is_active.clear()


class _OnDevice(torch.Generator):
    _index: int = 0

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", self._index)

    def get_offset(self) -> int:
        # Only CUDA's own generator counts the values that it has drawn.
        return 0

    def set_offset(self, offset: int) -> "_OnDevice":
        return self


class _DefaultGenerator(_OnDevice):
    """The default generator of a device. It stores a seed but draws no numbers. The state of this generator is the
    state of the CPU's generator.
    """

    _seed: int = DEFAULT_SEED

    @classmethod
    def for_device(cls, index: int) -> "_DefaultGenerator":
        generator = cls()
        generator._index = index
        return generator

    def manual_seed(self, seed: int) -> "_DefaultGenerator":
        self._seed = int(seed) % (1 << 64)
        return self

    def seed(self) -> int:
        self._seed = secrets.randbits(53)
        return self._seed

    def initial_seed(self) -> int:
        return self._seed

    def get_state(self) -> torch.Tensor:
        return torch.default_generator.get_state()

    def set_state(self, state: torch.Tensor) -> "_DefaultGenerator":
        torch.default_generator.set_state(state)
        return self


def _generator_class(host: VirtualHost, is_active: list[bool]) -> type:
    """Create the class that replaces `torch.Generator` while a virtual GPU is active.

    Code that imported the replacement class still uses it after the virtual GPU ends. `isinstance` treats every
    generator as an instance of the replacement class, including generators that were created earlier. For a subclass
    that the script defines, `isinstance` works as usual.
    """
    original: Any = torch.Generator

    class GeneratorMeta(type(original)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original) if cls is Generator else super().__instancecheck__(instance)

    class Generator(_OnDevice, metaclass=GeneratorMeta):
        def __new__(cls, device: Any = "cpu") -> Any:
            device = (
                torch.device("cuda", device) if isinstance(device, int) else torch.device(device or "cpu")
            )
            if device.type != "cuda" or not is_active:
                return original(device) if cls is Generator else original.__new__(cls, device)
            generator = original.__new__(cls, "cpu")
            generator._index = index_of(host, device)
            return generator

        @property
        def device(self) -> torch.device:  # type: ignore[override]
            return original.device.__get__(self) if self._index < 0 else super().device

        _index = -1

        def __init__(self, *_arguments: Any, **_options: Any) -> None:
            # `__new__` has already set up the object, as in torch's own class.
            ...

    Generator.__module__, Generator.__qualname__ = original.__module__, original.__qualname__
    return Generator
