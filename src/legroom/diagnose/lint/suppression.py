"""`# legroom: ignore` and `# legroom: ignore[LG101, LG201]` at the end of a line."""

import re
from collections.abc import Sequence

_COMMENT = re.compile(r"#\s*legroom:\s*ignore(?:\[([^\]]*)\])?", re.IGNORECASE)


def is_ignored(lines: Sequence[str], code: str, first: int, last: int) -> bool:
    """Whether a comment on one of the lines (from 1) says to leave this code alone there."""
    for number in range(first, min(last, len(lines)) + 1):
        found = _COMMENT.search(lines[number - 1])
        if found is None:
            continue
        if found[1] is None or code in {part.strip().upper() for part in found[1].split(",")}:
            return True
    return False
