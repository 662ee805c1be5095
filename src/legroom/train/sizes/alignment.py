"""Aligns the allocation requests of the same step at two batch sizes.

Usually, the two logs have the same requests in the same order. However, libraries select kernels by size, so one log
may contain additional requests, such as a workspace. After a difference, the alignment continues at the next position
where several consecutive requests match. Allocations match if their bytes are equal or grew in proportion to the batch
size. Frees match if they free matching allocations.
"""

from collections.abc import Sequence

from legroom.predict.requests import MemoryRequest

MATCHES_TO_ALIGN = 4
MAX_SKIPPED = 120
"""The maximum number of skipped requests at one position, in both logs together."""
MAX_EXCESS_BYTES = 1024
"""The maximum number of bytes by which a request may exceed proportional growth, because of padding."""
MIN_GROWTH = 0.7
"""The minimum growth of a request, as a fraction of proportional growth. If part of a workspace has a fixed size, the
growth is below proportional growth.
"""


def matching_sizes(
    small: Sequence[MemoryRequest], small_batch: int, large: Sequence[MemoryRequest], large_batch: int
) -> list[int | None]:
    """For each allocation in `large`, return the bytes of the matching request in `small`, or None if there is no
    match.
    """
    if _pattern(small) == _pattern(large):
        return [request.bytes for request in small if request.bytes >= 0]
    return _Alignment(small, small_batch, large, large_batch).run()


def _pattern(requests: Sequence[MemoryRequest]) -> list[tuple[bool, int]]:
    """Return the sequence of allocations and frees. Allocations are numbered, because their addresses differ between
    runs."""
    order: dict[int, int] = {}
    pattern: list[tuple[bool, int]] = []
    for request in requests:
        is_allocation = request.bytes >= 0
        if is_allocation:
            order[request.id] = len(order)
        pattern.append((is_allocation, order.get(request.id, -1)))
    return pattern


class _Alignment:
    def __init__(
        self,
        small: Sequence[MemoryRequest],
        small_batch: int,
        large: Sequence[MemoryRequest],
        large_batch: int,
    ) -> None:
        self._small, self._large = small, large
        self._small_batch, self._large_batch = small_batch, large_batch
        self._match: dict[int, int] = {}
        self._bytes: dict[int, int] = {}

    def run(self) -> list[int | None]:
        small, large = self._small, self._large
        i = j = 0
        while i < len(small) and j < len(large):
            if not self._matches(small[i], large[j]):
                aligned = self._next_alignment(i, j)
                if aligned is None:
                    if not self._same_kind(i, j):
                        break
                else:
                    i, j = aligned
            if large[j].bytes >= 0 and small[i].bytes >= 0:
                self._match[large[j].id] = small[i].id
                self._bytes[large[j].id] = small[i].bytes
            i, j = i + 1, j + 1
        return [self._bytes.get(request.id) for request in large if request.bytes >= 0]

    def _same_kind(self, i: int, j: int) -> bool:
        """Return True if both requests are allocations or both are frees. This weaker comparison is the fallback if no
        alignment is found nearby.
        """
        return (self._small[i].bytes < 0) == (self._large[j].bytes < 0)

    def _next_alignment(self, i: int, j: int) -> tuple[int, int] | None:
        for distance in range(1, MAX_SKIPPED):
            for skipped in range(distance + 1):
                a, b = i + skipped, j + distance - skipped
                if a < len(self._small) and b < len(self._large) and self._match_from(a, b):
                    return a, b
        return None

    def _match_from(self, i: int, j: int) -> bool:
        """Return True if several consecutive requests match. When frees are compared, matching allocations among these
        requests are treated as the same allocation.
        """
        assumed: dict[int, int] = {}
        pairs = zip(
            self._small[i : i + MATCHES_TO_ALIGN], self._large[j : j + MATCHES_TO_ALIGN], strict=False
        )
        for one, other in pairs:
            if other.bytes < 0 and other.id in assumed:
                if one.bytes >= 0 or assumed[other.id] != one.id:
                    return False
            elif not self._matches(one, other):
                return False
            elif other.bytes >= 0:
                assumed[other.id] = one.id
        return True

    def _matches(self, one: MemoryRequest, other: MemoryRequest) -> bool:
        if one.bytes < 0 or other.bytes < 0:
            return one.bytes < 0 and other.bytes < 0 and self._match.get(other.id, other.id) == one.id
        grown = one.bytes * self._large_batch // self._small_batch
        return other.bytes == one.bytes or MIN_GROWTH * grown <= other.bytes <= grown + MAX_EXCESS_BYTES
