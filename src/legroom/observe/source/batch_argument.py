"""Finds the batch size argument of a script, on its command line or in its argument declarations.

A report can then suggest `--batch-size 96` instead of "use a smaller batch". The recognized names are common in
training scripts. An argument without an integer value is ignored.
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
    """A batch size among the script's arguments."""

    position: int
    """The index of the argument that contains the number."""
    name: str
    value: int
    with_equals: bool
    """Whether it is written `--batch-size=64` instead of `--batch-size 64`."""

    @property
    def text(self) -> str:
        return f"{self.name}{'=' if self.with_equals else ' '}{self.value}"

    def smaller(self, fraction: float) -> "BatchArgument | None":
        """Return the same argument with at most `fraction` of the value, rounded down to a common batch size."""
        size = int(self.value * fraction)
        if size < 1 or size >= self.value:
            return None
        return self.with_value(_round_down(size))

    def with_value(self, size: int) -> "BatchArgument":
        return replace(self, value=size)

    def replace_in(self, arguments: Sequence[str]) -> list[str]:
        """Return the script's arguments with this batch size instead of the old one."""
        changed = list(arguments)
        changed[self.position] = self.text if self.with_equals else str(self.value)
        return changed


def find_batch_argument(arguments: Sequence[str]) -> BatchArgument | None:
    """The first batch size among the script's arguments."""
    for position, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if not _NAME.fullmatch(name):
            continue
        if equals and value.isdecimal() and int(value) > 0:
            return BatchArgument(position, name, int(value), with_equals=True)
        following = arguments[position + 1] if position + 1 < len(arguments) else ""
        if not equals and name.startswith("-") and following.isdecimal() and int(following) > 0:
            return BatchArgument(position + 1, name, int(following), with_equals=False)
    return None


def declared_batch_argument(source: str) -> list[str]:
    """The default batch size that a script declares, as arguments: `["--batch-size", "32"]` for
    `parser.add_argument("--batch-size", default=32)`. Empty if it declares none."""
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
            for name in names[::-1]:  # the long name comes last
                for default in defaults:
                    if isinstance(name, str) and isinstance(default, ast.Constant):
                        arguments = [name, str(default.value)]
                        if find_batch_argument(arguments) is not None:
                            return arguments
    return []


def _round_down(size: int) -> int:
    if size < 16:
        return 1 << (size.bit_length() - 1)
    return size - size % 8
