"""Chooses the setting that determines the batch size of a failed run, and describes how to change it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from legroom.memory.annotations import FoundSetting
from legroom.memory.event_base import Annotation
from legroom.observe.source.batch_argument import (
    EVALUATION_RANK,
    LOOP_RANK,
    TASK_RANK,
    find_batch_argument,
    integer_arguments,
    round_down,
)
from legroom.observe.source.batch_setting import SIZE, BatchSetting


@dataclass(frozen=True, slots=True)
class BatchChange:
    """A change that reduces the value of the batch size setting."""

    setting: BatchSetting
    size: int
    evaluation: BatchSetting | None = None

    @property
    def advice(self) -> str:
        setting, before, other = self.setting, self.setting.value, self.evaluation
        if setting.file or setting.variable:
            also = (
                f" and `{other.text_with(self.size)}` in {other.file_name}, line {other.line}"
                if other
                else ""
            )
            return f"{setting.how(self.size)} (currently {before}){also}"
        also = f" and `{other.text_with(self.size)}`" if other else ""
        if not setting.is_given:
            return f"Add `{self.text}` (the default is {before}){also}"
        return f"Use `{self.text}`{also} instead of `{setting.text_with(before)}`"

    @property
    def text(self) -> str:
        return self.setting.text_with(self.size)

    def as_evidence(self) -> dict[str, Any]:
        """Return the change as JSON: new arguments of the script, environment variables, or edits of lines."""
        setting = self.setting
        return {
            "argument": self.text,
            "arguments": self._arguments(),
            "environment": {setting.variable: str(self.size)} if setting.variable else {},
            "edits": [
                self._edit(each) for each in (setting, self.evaluation) if each is not None and each.file
            ],
        }

    def _edit(self, setting: BatchSetting) -> dict[str, Any]:
        old, new = setting.text_with(setting.value), setting.text_with(self.size)
        return {"file": setting.file, "line": setting.line, "old": old, "new": new}

    def _arguments(self) -> list[str] | None:
        if self.setting.arguments is None:
            return None
        arguments = [each.replace(SIZE, str(self.size)) for each in self.setting.arguments]
        if self.evaluation is None:
            return arguments
        given = [each for each in integer_arguments(arguments) if each.name == self.evaluation.name]
        if given:
            return given[0].with_value(self.size).replace_in(arguments)
        return [*self.evaluation.text_with(self.size).split(" "), *arguments]


def smaller_setting(
    setting: BatchSetting | None, fraction: float, evaluation: BatchSetting | None = None
) -> BatchChange | None:
    """Return a change that reduces the batch size to at most `fraction` of its current value. Return None if the new
    batch size would be less than one sample, or not smaller than the current value.

    `evaluation` is the batch size of an evaluation that does not fit either, which the change also reduces.
    """
    if setting is None:
        return None
    size = int(setting.value * fraction)
    if not 1 <= size < setting.value:
        return None
    size = round_down(size)
    if evaluation is not None and (
        evaluation.value <= size or bool(setting.file) != bool(evaluation.file) or setting.variable
    ):
        evaluation = None
    return BatchChange(setting, size, evaluation)


def choose_setting(
    details: Sequence[Annotation],
    arguments: Sequence[str],
    *,
    batch_size: int | None,
    evaluates: bool,
    shape: Sequence[int] = (),
) -> BatchSetting | None:
    """Return the batch size setting of the failed run. `shape` is the shape of the model's last input, if known. If a
    DataLoader returns batches of 1, and its dataset returns batches, the batch size is the first dimension.

    An evaluation may have its own batch size. If the loader's batch size is known, the setting must be equal to that
    size, a multiple of it or a divisor of it. The setting is a multiple if the program uses several GPUs or
    accumulates gradients. If an evaluation has no loader, its setting must be a dimension of the model's input.
    Otherwise, the setting of the training could be suggested, although the evaluation does not use it.
    """
    found = [_setting_of(each) for each in details if isinstance(each, FoundSetting)]
    if not found:
        found = _given(arguments)
    if batch_size == 1 and any(each.value in shape[:1] for each in found):
        batch_size = shape[0]  # the dataset returns batches
    if batch_size is None and shape:
        found = [
            each
            for each in found
            if not LOOP_RANK <= each.rank < EVALUATION_RANK
            or each.value == shape[0]
            or (each.rank == TASK_RANK and not each.file)
        ]
    proven = [
        each for each in found if each.rank < 0 and each.value in ((batch_size,) if batch_size else shape)
    ]
    if proven:
        return _unambiguous(proven)
    own = [each for each in found if (each.rank >= EVALUATION_RANK) == evaluates]
    shared = [each for each in found if evaluates and each.rank < EVALUATION_RANK]
    if evaluates and batch_size is None and shape:
        own, shared = ([each for each in settings if each.value in shape] for settings in (own, shared))
    for settings in (own, shared):
        exact = [each for each in settings if batch_size in (None, each.value)]
        if exact:
            return _unambiguous(exact)
    multiples = [
        each
        for each in (*own, *shared)
        if batch_size
        and batch_size > 1
        and each.rank == 0
        and (each.value % batch_size == 0 or batch_size % each.value == 0)
    ]
    return multiples[0] if multiples else None


def evaluation_setting(details: Sequence[Annotation]) -> BatchSetting | None:
    found = [
        _setting_of(each)
        for each in details
        if isinstance(each, FoundSetting) and each.rank >= EVALUATION_RANK and not each.variable
    ]
    return found[0] if len(found) == 1 else None


def _unambiguous(settings: Sequence[BatchSetting]) -> BatchSetting | None:
    """Return the most likely setting, or None if several constants in files are equally likely."""
    best = min(settings, key=lambda each: each.rank)
    same = [each for each in settings if each.rank == best.rank and each.file]
    return None if best.file and len(same) > 1 else best


def _setting_of(found: FoundSetting) -> BatchSetting:
    return BatchSetting(
        name=found.name, value=found.value, rank=found.rank, text=found.text, arguments=found.arguments,
        is_given=found.is_given, variable=found.variable, file=found.file, line=found.line,
    )  # fmt: skip


def _given(arguments: Sequence[str]) -> list[BatchSetting]:
    """Return the batch size on the command line, for captures without recorded settings."""
    given = find_batch_argument(arguments)
    if given is None:
        return []
    changed = given.replace_in(arguments)
    changed[given.position] = changed[given.position].removesuffix(str(given.value)) + SIZE
    text = f"{given.name}{given.separator}{SIZE}"
    return [BatchSetting(name=given.name, value=given.value, rank=0, text=text, arguments=tuple(changed))]
