"""Data classes for the uses of one name in source code."""

from typing import NamedTuple


class StoringStatement(NamedTuple):
    """A statement that stores a value in a variable or attribute."""

    file: str
    line: int
    function: str
    uses_itself: bool
    """Whether the new value is computed from the old value: `total = total + loss`, `total += loss`, `h = cell(x,
    h)`.
    """
    adds: bool
    """Whether the new value is a sum: `total = total + loss`, `total += loss`."""
    concatenates: bool
    """Whether a function enlarges the old value: `torch.cat([history, out])`."""
    stores_number: bool
    """Whether the stored value is a number or a string: `losses.append(loss.item())`."""
    in_loop: bool
    replaces: bool = False
    """Whether the statement is a plain assignment, which drops the old value."""
    constructs: bool = False
    """Whether the statement is a plain assignment of a new instance: `meter = Meter()`."""
    below_limit: bool = False
    """Whether the statement only runs while a counter is below a limit: `if step < 10:`."""
    keys: tuple[str, ...] = ()
    """The literal keys under which the statement stores the value: `totals["loss"] += loss`."""
    at_index: bool = False
    """Whether the statement replaces an item (`slots[i] = state`), so a list does not grow."""
    truncates: bool = False
    """Whether the stored value is a slice of the old and the new value: `torch.cat([queue, keys])[-64:]`."""
    only_if_missing: bool = False
    """Whether the statement only runs if there is no value yet: `if bank is None: bank = samples`."""
    only_at_start: bool = False
    """Whether the statement only runs in the first iteration of the outermost loop around it: `if step == 0:`."""
    repeats_keys: bool = False
    """Whether the key is the variable of an inner loop, so keys repeat: `memory[index] = state` in a loop over the
    samples of each epoch.
    """


class Occurrence(NamedTuple):
    """A use of the name, with the function that contains the use, and whether the use is in a loop."""

    function: str
    in_loop: bool


class PassedArgument(NamedTuple):
    """A call that passes the named object to a function, as a positional or keyword argument."""

    function: str
    argument: int | str
    occurrence: Occurrence


class LengthCheck(NamedTuple):
    """A check of the named object's length that determines whether some functions are called."""

    functions: frozenset[str]
    occurrence: Occurrence
