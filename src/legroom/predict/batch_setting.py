"""One way to change the batch size of a script: an argument, an environment variable, or a number in a file.

The tracing process collects the candidates (see `tracing.settings`). A name alone does not prove that a candidate sets
the batch size. Therefore the script is started again with another value of the candidate, and the batches of that run
decide.
"""

import os
from dataclasses import dataclass, field, replace
from typing import Any

from legroom.observe.script import Script

SIZE = "\0"
"""Marks the place of the number in the texts of a `BatchSetting`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSetting:
    """A candidate for the setting of the batch size of a script. `SIZE` marks the number in its texts."""

    name: str
    value: int
    rank: int
    """How likely it is, by its name; 0 is most likely."""
    text: str = ""
    """What the user writes: `--batch-size SIZE`, `BATCH_SIZE=SIZE`, `batch_size: SIZE`."""
    arguments: tuple[str, ...] | None = None
    """All arguments of the script; None if they do not change."""
    is_given: bool = True
    """Whether the argument is on the command line; otherwise the script uses its default."""
    variable: str = ""
    """The environment variable."""
    file: str = ""
    line: int = 0
    content: str = field(default="", repr=False)
    """The content of `file`."""

    def text_with(self, size: int) -> str:
        return self.text.replace(SIZE, str(size))

    def script_with(self, script: Script, size: int) -> Script:
        if self.arguments is None:
            return script
        return replace(script, arguments=tuple(each.replace(SIZE, str(size)) for each in self.arguments))

    def start_options(self, size: int) -> dict[str, Any]:
        """The environment and the changed files for `start_tracing`."""
        return {
            "environment": {self.variable: str(size)} if self.variable else {},
            "edits": {self.file: self.content.replace(SIZE, str(size))} if self.file else {},
        }

    def how(self, size: int) -> str:
        """The change to make for another batch size, as an imperative without a period."""
        text = self.text_with(size)
        if self.file:
            return f"Write `{text}` in {os.path.basename(self.file)}, line {self.line}"
        if self.variable:
            return f"Set the environment variable `{text}`"
        return f"Use `{text}`" if self.is_given else f"Add `{text}`"
