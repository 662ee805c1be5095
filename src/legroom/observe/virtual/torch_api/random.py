"""Random numbers on a virtual GPU: they come from the CPU's own generator.

A run on a virtual GPU gives bit for bit what the same script gives on the plain CPU, where there is one generator and
`torch.cuda.manual_seed` does nothing. So here too: a device's default generator keeps the seed it was given and says
it again, but draws nothing; its state, which scripts save, restore and fork, is the state of the CPU's generator.
The price: seeding `torch.cuda` alone does not repeat a run, `torch.manual_seed` does.

`torch.Generator(device="cuda")` is an independent generator with its own seed, as anywhere.
"""

import contextlib
import secrets
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from legroom.observe.virtual.patching import Replacement, table
from legroom.observe.virtual.protocols import Host
from legroom.observe.virtual.torch_api.devices import index_of

DEFAULT_SEED = 67280421310721
"""What torch seeds a generator with that nobody has seeded."""


@contextlib.contextmanager
def generators(host: Host) -> Iterator[Iterable[Replacement]]:
    """Replacements for the default generators, and for the class that makes others."""
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
    """A generator of the CPU that says it is a device's."""

    _index: int = 0

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", self._index)

    def get_offset(self) -> int:
        """How many numbers were drawn: only CUDA's generator counts that."""
        return 0

    def set_offset(self, offset: int) -> "_OnDevice":
        """Nothing counts the numbers drawn."""
        return self


class _DefaultGenerator(_OnDevice):
    """The default generator of a device: a seed to tell, and the CPU's state to save and restore."""

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


def _generator_class(host: Host, is_active: list[bool]) -> type:
    """`torch.Generator` for the time of a virtual GPU, and for those who keep it afterwards.

    Every generator is an instance of it, those made before included; a class of the script's own that derives from
    it is as strict as any class.
    """
    plain: Any = torch.Generator

    class GeneratorMeta(type(plain)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, plain) if cls is Generator else super().__instancecheck__(instance)

    class Generator(_OnDevice, metaclass=GeneratorMeta):
        def __new__(cls, device: Any = "cpu") -> Any:
            device = (
                torch.device("cuda", device) if isinstance(device, int) else torch.device(device or "cpu")
            )
            if device.type != "cuda" or not is_active:
                return plain(device) if cls is Generator else plain.__new__(cls, device)
            generator = plain.__new__(cls, "cpu")
            generator._index = index_of(host, device)
            return generator

        @property
        def device(self) -> torch.device:  # type: ignore[override]
            return plain.device.__get__(self) if self._index < 0 else super().device

        _index = -1

        def __init__(self, *_arguments: Any, **_options: Any) -> None:
            """Everything happens in `__new__`, as in torch's own class."""

    Generator.__module__, Generator.__qualname__ = plain.__module__, plain.__qualname__
    return Generator
