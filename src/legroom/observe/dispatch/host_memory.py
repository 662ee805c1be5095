"""The host's memory in place of a device's: counts bytes, keeps no cache, never fails."""

from typing import NamedTuple


class HostBlock(NamedTuple):
    size: int


class HostMemory:
    """Stands where a device with a caching allocator would: it is its own `allocator`."""

    def __init__(self) -> None:
        self.index = 0
        self.allocated = self.peak_allocated = 0

    @property
    def allocator(self) -> "HostMemory":
        return self

    @property
    def reserved(self) -> int:
        return self.allocated

    @property
    def peak_reserved(self) -> int:
        return self.peak_allocated

    def malloc(self, size: int, stream: int = 0) -> HostBlock:
        self.allocated += size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return HostBlock(size)

    def free(self, block: HostBlock) -> None:
        self.allocated -= block.size
