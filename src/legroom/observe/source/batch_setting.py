"""Settings that change the batch size of a script: an argument, an environment variable, or a number in a file.

The tracing process collects the candidates (see `script_settings`). The name of a setting does not prove that the
setting determines the batch size. Therefore a candidate is checked by starting the script again with a different value.
"""

import os
from dataclasses import dataclass, field, replace
from typing import Any

from legroom.observe.script import Script
from legroom.observe.source.cells import cell_name

SIZE = "\0"
"""A placeholder for the batch size in the strings of a `BatchSetting`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSetting:
    """A setting that may determine the batch size of a script."""

    name: str
    """The name of the option, variable or constant, or the path of a key in a configuration file, such as
    `data.batch_size`.
    """
    value: int
    rank: int
    """How likely the candidate is, judged by its name. The most likely candidates have the value 0."""
    text: str = ""
    """The setting as the user writes it, for example `--batch-size SIZE`, `BATCH_SIZE=SIZE` or `batch_size: SIZE`."""
    arguments: tuple[str, ...] | None = None
    """All arguments of the script, including this setting, or None if the setting is not an argument."""
    is_given: bool = True
    """Whether the argument is on the command line. Otherwise, the script uses the default value of the argument."""
    variable: str = ""
    file: str = ""
    line: int = 0
    content: str = field(default="", repr=False)

    def text_with(self, size: int) -> str:
        return self.text.replace(SIZE, str(size))

    def script_with(self, script: Script, size: int) -> Script:
        if self.arguments is None:
            return script
        return replace(script, arguments=tuple(each.replace(SIZE, str(size)) for each in self.arguments))

    def start_options(self, size: int) -> dict[str, Any]:
        return {
            "environment": {self.variable: str(size)} if self.variable else {},
            "edits": {self.file: self.content.replace(SIZE, str(size))} if self.file else {},
        }

    @property
    def file_name(self) -> str:
        """The name of the file. For a configuration file in the current folder, the name includes the folders."""
        below = os.path.relpath(self.file) if self.is_nested else ".."
        return os.path.basename(cell_name(self.file) or self.file) if below.startswith("..") else below

    @property
    def is_nested(self) -> bool:
        """Whether the setting is a key of a configuration file, inside other keys."""
        return bool(self.file) and "." in self.name

    def how(self, size: int) -> str:
        """Return an instruction for changing the batch size, without a period at the end."""
        text = self.text_with(size)
        if self.file:
            text = f"`{self.name}` to {size}" if self.is_nested else f"`{text}`"
            return f"Set {text} in {self.file_name}, line {self.line}"
        if self.variable:
            return f"Set the environment variable `{text}`"
        return f"Use `{text}`" if self.is_given else f"Add `{text}`"
