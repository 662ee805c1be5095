"""The module with which Windows locks files. Here, every lock succeeds."""

LK_NBLCK = 2


def locking(descriptor: int, mode: int, count: int) -> None: ...
