"""The script's own argument for its batch size, recognised among its words or where it declares it, and other sizes for it.

A report that can say `--batch-size 96 instead of 256` is worth more than one that says "use a smaller batch". The names
are those that training scripts use; a word that is not followed by a whole number is left alone.
"""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

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
        return self.with_value(_round_down(size))

    def with_value(self, size: int) -> "BatchArgument":
        return replace(self, value=size)

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


def declared_batch_argument(source: str) -> list[str]:
    """The words that say what a script takes by itself where nobody says otherwise: of
    `parser.add_argument("--batch-size", default=32)` these are `--batch-size 32`. None where it declares no such argument."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    for call in ast.walk(tree):
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr == "add_argument"
        ):
            names = [each.value for each in call.args if isinstance(each, ast.Constant)]
            defaults = [each.value for each in call.keywords if each.arg == "default"]
            for name in names[::-1]:  # the long one stands last
                for default in defaults:
                    if isinstance(name, str) and isinstance(default, ast.Constant):
                        words = [name, str(default.value)]
                        if find_batch_argument(words) is not None:
                            return words
    return []


def _round_down(size: int) -> int:
    if size < 16:
        return 1 << (size.bit_length() - 1)
    return size - size % 8
