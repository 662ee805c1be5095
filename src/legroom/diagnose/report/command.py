"""The command that started a run. The report uses this command to print the exact next command."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from legroom import shell
from legroom.units import GiB


@dataclass(frozen=True, slots=True)
class RunCommand:
    """A command of the form `legroom run OPTIONS TARGET ARGUMENTS` or `legroom launch OPTIONS TARGET ARGUMENTS`."""

    options: tuple[str, ...] = ()
    """Options that also apply to the next run, such as `--gpu`, but not the path of the capture."""
    target: tuple[str, ...] = ()
    """The script, or `-m` and a module name."""
    arguments: tuple[str, ...] = ()
    verb: str = "run"

    @property
    def text(self) -> str:
        if self.is_record:
            return "legroom.record()"
        return shell.join(["legroom", self.verb, *self.options, *self.target, *self.arguments])

    def with_arguments(self, arguments: Sequence[str]) -> "RunCommand":
        return replace(self, arguments=tuple(arguments))

    def with_environment(self, variables: Mapping[str, str]) -> str:
        return shell.with_variables(variables, self.text)

    def with_spilling(self) -> "RunCommand":
        return replace(self, options=(*self.options, "--spill"))

    @property
    def is_record(self) -> bool:
        """True if `legroom.record` recorded only a block of a program. No command can repeat such a recording."""
        return self.verb == "record"

    @property
    def is_launch(self) -> bool:
        return self.verb == "launch"

    @property
    def has_virtual_gpu(self) -> bool:
        return "--gpu" in self.options

    def on_virtual_gpu(self, size: str) -> "RunCommand":
        return replace(self, options=("--gpu", size, *self.options))

    def estimate(self, capacity: int) -> str:
        """Return the `legroom estimate` command for the same run, with the same `--gpu`, or with a GPU of `capacity`
        bytes.
        """
        gpus = dict(zip(self.options, self.options[1:], strict=False)).get("--gpu", f"{capacity // GiB}GiB")
        gpu = gpus.partition(",")[0]
        return shell.join(["legroom", "estimate", "--gpu", gpu, *self.target, *self.arguments])

    def as_header(self) -> dict[str, Any]:
        return {
            "verb": self.verb,
            "options": list(self.options),
            "target": list(self.target),
            "arguments": list(self.arguments),
        }

    @classmethod
    def from_header(cls, header: Mapping[str, Any]) -> "RunCommand":
        """Read the command from a capture's header. Invalid values are ignored, because the file may be untrusted."""
        given = header.get("verb")
        verb = given if given in ("launch", "record") else "run"
        return cls(
            _strings(header.get("options")),
            _strings(header.get("target")),
            _strings(header.get("arguments")),
            verb,
        )


def _strings(value: object) -> tuple[str, ...]:
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list) else ()
