"""The argument by which a script is told its batch size.

A script that makes its batches itself gives no DataLoader that could be told another size. If it takes the size as an argument, as
such scripts do, each other size is the same script started with another argument: slower than a fork, and as certain.
"""

import tokenize
from dataclasses import dataclass, replace

from legroom.observe.script import Script
from legroom.observe.source.batch_argument import BatchArgument, declared_batch_argument, find_batch_argument


@dataclass(frozen=True, slots=True)
class BatchSetting:
    """Where a script's words set its batch size."""

    script: Script
    """With the argument among its words, also where only its default was in force."""
    argument: BatchArgument

    def script_with(self, size: int) -> Script:
        words = self.argument.with_value(size).replace_in(self.script.arguments)
        return replace(self.script, arguments=tuple(words))


def find_batch_setting(script: Script) -> BatchSetting | None:
    """The batch size among a script's words, or else the default that its source declares."""
    argument = find_batch_argument(script.arguments)
    if argument is None and not script.is_module:
        words = (*script.arguments, *declared_batch_argument(_source(script)))
        script, argument = replace(script, arguments=words), find_batch_argument(words)
    return None if argument is None else BatchSetting(script, argument)


def _source(script: Script) -> str:
    try:
        with tokenize.open(script.name) as file:
            return file.read()
    except (OSError, SyntaxError, UnicodeDecodeError):  # a folder, a zip, or no text
        return ""
