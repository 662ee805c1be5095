"""A script that wants to be started by torchrun, traced as the only rank there is."""

import re
import socket

NOTE = "The script is one of ranks: traced as the only one. legroom launch foretells each of several"

_MISSING = re.compile(
    r"environment variable (RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT) expected"
    r"|KeyError: '(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT)'"
)


def is_wanted(sentence: str) -> bool:
    """Whether a script failed for want of what torchrun tells its ranks. Not before: scripts are known to train otherwise where
    these variables are set."""
    return _MISSING.search(sentence) is not None


def environment(folder: str) -> dict[str, str]:
    """What torchrun tells a rank that is alone. Its group answers at once and has no threads, which a fork would lose; `folder` is
    for objects that it broadcasts."""
    # Not at the top: it imports torch, and few scripts want it.
    from legroom.observe.virtual.single_rank import VARIABLE as LONE_RANK

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), LONE_RANK: folder,
    }  # fmt: skip
