"""Compares the names and shapes of the weights in a checkpoint with those of the model, before any weight is loaded.

If names differ, the error lists each missing name with the most similar name in the file. If all names differ by the
same prefix, the error reports only the prefix.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence

from legroom.errors import CheckpointError

Shapes = Mapping[str, Sequence[int]]
WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
MAX_LISTED = 5


def plain_name(name: str) -> str:
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def check_names(saved: Shapes, expected: Shapes, source: str) -> None:
    missing = [name for name in expected if name not in saved]
    unexpected = [name for name in saved if name not in expected]
    reshaped = [name for name in expected if name in saved and tuple(saved[name]) != tuple(expected[name])]
    if not (missing or unexpected or reshaped):
        return
    matching = len(expected) - len(missing) - len(reshaped)
    lines = [
        f"The weights in {source} do not match the model. Tensors with the same name and shape: {matching} of {len(expected)}."
    ]
    prefix = _extra_prefix(saved, expected)
    if prefix is not None:
        lines.append(prefix)
    else:
        lines += _missing(missing, unexpected)
        lines += _unexpected(unexpected, missing)
    lines += _reshaped(reshaped, saved, expected)
    if not prefix:
        lines.append(
            "Build the same model as before, or load only the matching tensors: load_weights(model, ..., strict=False)."
        )
    raise CheckpointError("\n".join(lines))


def loadable_names(saved: Shapes, expected: Shapes) -> list[str]:
    return [name for name in expected if name in saved and tuple(saved[name]) == tuple(expected[name])]


def closest_name(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar name, or None if no name is similar. Names with the same last component, such as
    `weight`, are preferred."""
    last = name.rpartition(".")[2]
    candidates = [other for other in names if other.rpartition(".")[2] == last] or list(names)
    matches = difflib.get_close_matches(name, candidates, n=1, cutoff=0.5)
    return matches[0] if matches else None


def _extra_prefix(saved: Shapes, expected: Shapes) -> str | None:
    for longer, shorter, message in (
        (saved, expected, "All names in the file start with '{}', but no name in the model does. Strip the prefix, or save the unwrapped model."),
        (expected, saved, "All names in the model start with '{}', but no name in the file does. Load the weights into the unwrapped model."),
    ):  # fmt: skip
        first = next(iter(longer), "")
        prefix = first.partition(".")[0] + "."
        if longer and {prefix + name for name in shorter} == set(longer):
            return message.format(prefix)
    return None


def _missing(missing: list[str], unexpected: list[str]) -> list[str]:
    if not missing:
        return []
    lines = [f"Missing in the file ({len(missing)}):"]
    for name in missing[:MAX_LISTED]:
        closest = closest_name(name, unexpected)
        lines.append(f"  {name}" + (f"   (closest in the file: {closest})" if closest else ""))
    return lines + _rest(missing)


def _unexpected(unexpected: list[str], missing: list[str]) -> list[str]:
    listed = {closest_name(name, unexpected) for name in missing[:MAX_LISTED]}
    others = [name for name in unexpected if name not in listed]
    if not others:
        return []
    lines = [f"Not in the model ({len(unexpected)}):"]
    for name in others[:MAX_LISTED]:
        closest = closest_name(name, missing)
        lines.append(f"  {name}" + (f"   (closest in the model: {closest})" if closest else ""))
    return lines + _rest(others)


def _reshaped(names: list[str], saved: Shapes, expected: Shapes) -> list[str]:
    if not names:
        return []
    lines = [f"Different shape ({len(names)}):"]
    lines += [
        f"  {name}: {_shape(saved[name])} in the file, {_shape(expected[name])} in the model"
        for name in names[:MAX_LISTED]
    ]
    return lines + _rest(names)


def _rest(names: list[str]) -> list[str]:
    return [f"  and {len(names) - MAX_LISTED} more"] if len(names) > MAX_LISTED else []


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"
