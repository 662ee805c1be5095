"""Whether a checkpoint's weights are this model's: every name and shape, before anything is loaded.

A difference is told as people look for it: what is missing beside the nearest name that is there, and a prefix that all
names have too much, or lack, in one sentence instead of a hundred.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence

from legroom.errors import CheckpointError

Shapes = Mapping[str, Sequence[int]]
WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
"""What torch.compile and the like put into names."""
SHOWN = 5


def plain_name(name: str) -> str:
    """A parameter's name without what wrappers added."""
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def check_names(saved: Shapes, wanted: Shapes, source: str) -> None:
    """Refuse weights that do not fit the model name by name and shape by shape."""
    missing = [name for name in wanted if name not in saved]
    unexpected = [name for name in saved if name not in wanted]
    reshaped = [name for name in wanted if name in saved and tuple(saved[name]) != tuple(wanted[name])]
    if not (missing or unexpected or reshaped):
        return
    told = [
        f"The weights in {source} are not this model's ({len(wanted) - len(missing) - len(reshaped)} of {len(wanted)} fit)."
    ]
    prefix = _extra_prefix(saved, wanted)
    if prefix is not None:
        told.append(prefix)
    else:
        told += _missing(missing, unexpected)
        told += _unexpected(unexpected, missing)
    told += _reshaped(reshaped, saved, wanted)
    if not prefix:
        told.append("Build the model as it was, or load what fits: load_weights(model, ..., strict=False).")
    raise CheckpointError("\n".join(told))


def fitting(saved: Shapes, wanted: Shapes) -> list[str]:
    """The names that can be loaded."""
    return [name for name in wanted if name in saved and tuple(saved[name]) == tuple(wanted[name])]


def nearest(name: str, among: Iterable[str]) -> str | None:
    """The most similar name, if one is similar enough. Equal last parts (`weight`) are what makes two names comparable."""
    last = name.rpartition(".")[2]
    candidates = [other for other in among if other.rpartition(".")[2] == last] or list(among)
    found = difflib.get_close_matches(name, candidates, n=1, cutoff=0.5)
    return found[0] if found else None


def _extra_prefix(saved: Shapes, wanted: Shapes) -> str | None:
    for longer, shorter, words in (
        (saved, wanted, "Every name in the file begins with '{}', no name of the model does: strip it, or save the unwrapped model."),
        (wanted, saved, "Every name of the model begins with '{}', no name in the file does: load into the model inside ({} is the wrapper's)."),
    ):  # fmt: skip
        first = next(iter(longer), "")
        prefix = first.partition(".")[0] + "."
        if longer and {prefix + name for name in shorter} == set(longer):
            return words.format(prefix, prefix)
    return None


def _missing(missing: list[str], unexpected: list[str]) -> list[str]:
    if not missing:
        return []
    lines = [f"Missing, {len(missing)}:"]
    for name in missing[:SHOWN]:
        near = nearest(name, unexpected)
        lines.append(f"  {name}" + (f"   (nearest in the file: {near})" if near else ""))
    return lines + _rest(missing)


def _unexpected(unexpected: list[str], missing: list[str]) -> list[str]:
    told = {nearest(name, unexpected) for name in missing[:SHOWN]}
    left = [name for name in unexpected if name not in told]
    if not left:
        return []
    lines = [f"Not of this model, {len(unexpected)}:"]
    for name in left[:SHOWN]:
        near = nearest(name, missing)
        lines.append(f"  {name}" + (f"   (nearest in the model: {near})" if near else ""))
    return lines + _rest(left)


def _reshaped(names: list[str], saved: Shapes, wanted: Shapes) -> list[str]:
    if not names:
        return []
    lines = [f"Of another shape, {len(names)}:"]
    lines += [
        f"  {name}: {_shape(saved[name])} in the file, {_shape(wanted[name])} in the model"
        for name in names[:SHOWN]
    ]
    return lines + _rest(names)


def _rest(names: list[str]) -> list[str]:
    return [f"  and {len(names) - SHOWN} more"] if len(names) > SHOWN else []


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "a single number"
