"""Finds the batch size argument of a script, on its command line or in its argument declarations.

With this argument, a report can suggest `--batch-size 96` instead of "use a smaller batch". This module recognizes
argument names that are common in training scripts. Arguments whose value is not an integer are ignored.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SIZES = frozenset({"b", "bs", "bsz", "mbs", "batch", "batchsize", "minibatch", "microbatch"})
_COUNTS = frozenset(
    {"norm", "num", "number", "n", "count", "batches", "log", "print", "every", "interval", "normalization"}
)
_EVALUATION = frozenset(
    {"test", "eval", "evaluation", "val", "valid", "validation", "dev", "inference", "predict"}
)
_EVALUATING = _EVALUATION | {"testing", "evaluate", "evaluating", "validate", "validating", "infer"}
_TASK_COUNTS = frozenset({"num", "number", "n", "per", "count", "size", "batch"})
_QUALIFIERS = frozenset(
    {
        "size",
        "train",
        "training",
        "per",
        "device",
        "gpu",
        "micro",
        "mini",
        "local",
        "global",
        "total",
        "effective",
    }
)
LOOP_RANK = 3
"""The rank of a candidate that is the step of the running loop, and whose name does not suggest a batch size."""
TASK_RANK = 5
"""The rank of an option for the number of tasks in a step, if a loop processes them one after another."""
EVALUATION_RANK = 6
"""The rank of a batch size that is not used for training, such as `val_batch_size`."""


def batch_size_rank(name: str) -> int | None:
    """Return a rank that shows how likely it is that `name` is the training batch size. Rank 0 is the most likely.
    Return None if `name` does not look like a batch size.

    The name may be an option (`--trainer.batchSize`), a variable (`BATCH_SIZE`) or a key. Only the part after the last
    dot is compared with common names for batch sizes. The parts before the last dot may show that the batch size is not
    used for training (`val.batch_size`).
    """
    words = [word.lower() for word in _WORD.findall(name.rpartition(".")[2])]
    joined = "".join(words)
    if _COUNTS & set(words) or not (_SIZES & set(words) or joined in _SIZES or "batchsize" in joined):
        return None
    if _EVALUATION & {word.lower() for word in _WORD.findall(name)}:
        return EVALUATION_RANK
    return 0 if set(words) <= _SIZES | _QUALIFIERS else 2 if "batch" in joined else None


def suggests_task_count(name: str) -> bool:
    words = {word.lower() for word in _WORD.findall(name)}
    return bool(words & {"task", "tasks"}) and bool(words & _TASK_COUNTS) and not words & _EVALUATION


def suggests_tasks(name: str) -> bool:
    return not {"task", "tasks"}.isdisjoint(word.lower() for word in _WORD.findall(name))


def suggests_evaluation(name: str) -> bool:
    """Return whether the name of a function suggests that the function evaluates a model, for example `run_test`."""
    return not _EVALUATING.isdisjoint(word.lower() for word in _WORD.findall(name))


@dataclass(frozen=True, slots=True)
class BatchArgument:
    """A batch size among the script's arguments."""

    position: int
    name: str
    value: int
    separator: str
    """The separator between name and value: a space, `=`, or nothing (`-b64`)."""

    @property
    def text(self) -> str:
        return f"{self.name}{self.separator}{self.value}"

    def smaller(self, fraction: float) -> "BatchArgument | None":
        """Return the same argument with at most `fraction` of the value, rounded down to a common batch size."""
        size = int(self.value * fraction)
        if size < 1 or size >= self.value:
            return None
        return self.with_value(round_down(size))

    def with_value(self, size: int) -> "BatchArgument":
        return replace(self, value=size)

    def replace_in(self, arguments: Sequence[str]) -> list[str]:
        changed = list(arguments)
        changed[self.position] = str(self.value) if self.separator == " " else self.text
        return changed


def find_batch_argument(arguments: Sequence[str]) -> BatchArgument | None:
    found = [
        (rank, argument)
        for argument in integer_arguments(arguments)
        if argument.value > 0 and (rank := batch_size_rank(argument.name)) is not None
    ]
    likely = [pair for pair in found if pair[0] < EVALUATION_RANK]
    return min(likely, key=lambda pair: pair[0])[1] if likely else None


def integer_arguments(arguments: Sequence[str]) -> list[BatchArgument]:
    """Return each argument with an integer value (`--name 64`, `--name=64`, `name=64` and `-n64`)."""
    found = []
    for position, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        attached = re.fullmatch(r"(-[A-Za-z])(\d+)", argument)
        following = arguments[position + 1] if position + 1 < len(arguments) else ""
        if equals and value.isdecimal():
            found.append(BatchArgument(position, name, int(value), "="))
        elif attached is not None:
            found.append(BatchArgument(position, attached[1], int(attached[2]), ""))
        elif not equals and re.fullmatch(r"--?[A-Za-z].*", name) and following.isdecimal():
            found.append(BatchArgument(position + 1, name, int(following), " "))
    return found


def round_down(size: int) -> int:
    """Round down to a batch size that is common in practice: a power of two below 16, and otherwise a multiple of 8."""
    if size < 16:
        return 1 << (size.bit_length() - 1)
    return size - size % 8
