"""The script's own argument for its batch size, recognised among its words, and a smaller one.

A report that can say `--batch-size 96 instead of 256` is worth more than one that says "use a smaller batch". The names
are those that training scripts use; a word that is not followed by a whole number is left alone.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_NAME = re.compile(
    r"--?(?:(?:per[-_](?:device|gpu)[-_])?(?:train(?:ing)?[-_])?(?:micro[-_]?|mini[-_]?)?batch[-_]?size|bs|batch|b)"
    r"|(?:[\w.]+\.)?(?:train_)?batch_size"  # hydra: training.batch_size=64
)


@dataclass(frozen=True, slots=True)
class BatchArgument:
    """Where a batch size stands among the script's words."""

    position: int
    """Of the word that holds the number."""
    name: str
    value: int
    joined: bool
    """`--batch-size=64` rather than `--batch-size 64`."""

    @property
    def words(self) -> str:
        return f"{self.name}{'=' if self.joined else ' '}{self.value}"

    def smaller(self, fraction: float) -> "BatchArgument | None":
        """The same argument with at most `fraction` of the value, rounded down to a size that people use."""
        size = int(self.value * fraction)
        if size < 1 or size >= self.value:
            return None
        return BatchArgument(self.position, self.name, _round_down(size), self.joined)

    def put_into(self, words: Sequence[str]) -> list[str]:
        """The script's words with this argument in the place of the old one."""
        changed = list(words)
        changed[self.position] = self.words if self.joined else str(self.value)
        return changed


def find_batch_argument(words: Sequence[str]) -> BatchArgument | None:
    """The first batch size among the script's arguments."""
    for position, word in enumerate(words):
        name, equals, value = word.partition("=")
        if not _NAME.fullmatch(name):
            continue
        if equals and value.isdecimal() and int(value) > 0:
            return BatchArgument(position, name, int(value), joined=True)
        follows = words[position + 1] if position + 1 < len(words) else ""
        if not equals and name.startswith("-") and follows.isdecimal() and int(follows) > 0:
            return BatchArgument(position + 1, name, int(follows), joined=False)
    return None


def _round_down(size: int) -> int:
    if size < 16:
        return 1 << (size.bit_length() - 1)
    return size - size % 8
