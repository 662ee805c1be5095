"""Which request of one log is which request of another, the same step having been logged at two batch sizes.

As a rule the logs do the same, one by one. Libraries choose their kernels by size, though: a workspace appears, an
embedding's gradient is sorted first. So where the two part, they are brought together again at the next place at which several
requests in a row agree: the same bytes, or bytes that grew about as the rows did, and the same memory given back.
"""

from collections.abc import Sequence

from legroom.predict.tracing.trace import Request

IN_A_ROW = 4
"""Requests that must agree for two logs to be together again."""
REACH = 120
"""How many requests, of both logs together, may have no partner at one place."""
ROUNDING = 1024
"""Bytes by which what grows may exceed the rows' growth, from padding ..."""
MOSTLY = 0.7
"""... and the part of it that it has at least: a workspace may hold the rows and something fixed."""


def partners(small: Sequence[Request], few: int, large: Sequence[Request], many: int) -> list[int | None]:
    """For each birth in `large` (of `many` rows), in order: the bytes of its partner in `small` (of `few`), or None."""
    if _pattern(small) == _pattern(large):
        return [request.bytes for request in small if request.bytes >= 0]
    return _Alignment(small, few, large, many).run()


def _pattern(requests: Sequence[Request]) -> list[tuple[bool, int]]:
    """What is asked for and given back, by order of birth instead of by address."""
    order: dict[int, int] = {}
    pattern: list[tuple[bool, int]] = []
    for request in requests:
        is_birth = request.bytes >= 0
        if is_birth:
            order[request.id] = len(order)
        pattern.append((is_birth, order.get(request.id, -1)))
    return pattern


class _Alignment:
    def __init__(self, small: Sequence[Request], few: int, large: Sequence[Request], many: int) -> None:
        self._small, self._few, self._large, self._many = small, few, large, many
        self._partner: dict[int, int] = {}
        """Births: of the larger log → of the smaller one."""
        self._bytes: dict[int, int] = {}

    def run(self) -> list[int | None]:
        small, large = self._small, self._large
        i = j = 0
        while i < len(small) and j < len(large):
            if not self._agree(small[i], large[j]):
                together = self._meeting(i, j)
                if together is None:
                    if not self._could_agree(i, j):
                        break
                else:
                    i, j = together
            if large[j].bytes >= 0 and small[i].bytes >= 0:
                self._partner[large[j].id] = small[i].id
                self._bytes[large[j].id] = small[i].bytes
            i, j = i + 1, j + 1
        return [self._bytes.get(request.id) for request in large if request.bytes >= 0]

    def _could_agree(self, i: int, j: int) -> bool:
        """Both are births, or both give something back: what is left when nothing better is found nearby."""
        return (self._small[i].bytes < 0) == (self._large[j].bytes < 0)

    def _meeting(self, i: int, j: int) -> tuple[int, int] | None:
        """The nearest place at which several requests in a row agree."""
        for distance in range(1, REACH):
            for skipped in range(distance + 1):
                a, b = i + skipped, j + distance - skipped
                if a < len(self._small) and b < len(self._large) and self._agree_from(a, b):
                    return a, b
        return None

    def _agree_from(self, i: int, j: int) -> bool:
        """Several in a row, each new birth being the other's partner as far as this look goes."""
        looked: dict[int, int] = {}
        for one, other in zip(self._small[i : i + IN_A_ROW], self._large[j : j + IN_A_ROW], strict=False):
            if other.bytes < 0 and other.id in looked:
                if one.bytes >= 0 or looked[other.id] != one.id:
                    return False
            elif not self._agree(one, other):
                return False
            elif other.bytes >= 0:
                looked[other.id] = one.id
        return True

    def _agree(self, one: Request, other: Request) -> bool:
        if one.bytes < 0 or other.bytes < 0:
            return one.bytes < 0 and other.bytes < 0 and self._partner.get(other.id, other.id) == one.id
        grown = one.bytes * self._many // self._few
        return other.bytes == one.bytes or MOSTLY * grown <= other.bytes <= grown + ROUNDING
