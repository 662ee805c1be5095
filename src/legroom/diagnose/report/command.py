"""The command that started a run, kept word by word so that a report can name the next one exactly."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from legroom.units import GiB


@dataclass(frozen=True, slots=True)
class RunCommand:
    """`legroom run OPTIONS TARGET ARGUMENTS`, or `legroom launch ...`."""

    options: tuple[str, ...] = ()
    """Legroom's own that matter for another run: the GPU, not where the capture went."""
    target: tuple[str, ...] = ()
    """The script, or `-m` and a module."""
    arguments: tuple[str, ...] = ()
    """The script's own."""
    verb: str = "run"

    @property
    def text(self) -> str:
        return shlex.join(["legroom", self.verb, *self.options, *self.target, *self.arguments])

    def with_arguments(self, arguments: Sequence[str]) -> "RunCommand":
        return replace(self, arguments=tuple(arguments))

    @property
    def has_virtual_gpu(self) -> bool:
        return "--gpu" in self.options

    def on_virtual_gpu(self, size: str) -> "RunCommand":
        return replace(self, options=("--gpu", size, *self.options))

    def estimate(self, capacity: int) -> str:
        """`legroom estimate` of the same run, for a GPU as it was given, or of `capacity` bytes."""
        given = dict(zip(self.options, self.options[1:], strict=False)).get("--gpu", f"{capacity // GiB}GiB")
        gpu = given.partition(",")[0]
        return shlex.join(["legroom", "estimate", "--gpu", gpu, *self.target, *self.arguments])

    def as_run(self) -> dict[str, Any]:
        """As it is kept in a capture's header."""
        return {
            "verb": self.verb,
            "options": list(self.options),
            "target": list(self.target),
            "arguments": list(self.arguments),
        }

    @classmethod
    def from_run(cls, run: Mapping[str, Any]) -> "RunCommand":
        """From a capture's header, which may come from a stranger: words that are no words are left out."""
        verb = "launch" if run.get("verb") == "launch" else "run"
        return cls(_words(run.get("options")), _words(run.get("target")), _words(run.get("arguments")), verb)


def _words(value: object) -> tuple[str, ...]:
    return tuple(word for word in value if isinstance(word, str)) if isinstance(value, list) else ()
