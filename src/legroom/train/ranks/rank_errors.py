"""Errors that are raised if another rank has failed or does not respond.

LegroomError
├── PeerFailed    another rank raised an error; the message includes the rank and its error
└── RankMissing   another rank does not respond; the message names the rank
"""

from legroom.errors import LegroomError


class PeerFailed(LegroomError):  # noqa: N818
    pass


class RankMissing(LegroomError):  # noqa: N818
    pass
