"""What is raised when another rank is gone, instead of waiting for it for ever.

LegroomError
├── PeerFailed    another rank raised an error: which, and what it said
└── RankMissing   another rank did not come: which, and how long it was waited for
"""

from legroom.errors import LegroomError


class PeerFailed(LegroomError):  # noqa: N818  (reads as what it is)
    """Another rank raised an error that was not about memory."""


class RankMissing(LegroomError):  # noqa: N818
    """Another rank did not come to where all ranks meet."""
