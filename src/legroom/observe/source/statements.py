"""The facts that a reader of source code collects about one name."""

from typing import NamedTuple


class StoringStatement(NamedTuple):
    """A statement that stores into a name."""

    file: str
    line: int
    function: str
    uses_itself: bool
    """The new value is computed from the old: `total = total + loss`, `total += loss`, `h = cell(x, h)`."""
    adds: bool
    """It is computed by a sum: `total = total + loss`, `total += loss`."""
    concatenates: bool
    """It is computed by a function that enlarges it: `torch.cat([history, out])`."""
    stores_number: bool
    """The stored value is a number or text: `losses.append(loss.item())`."""
    in_loop: bool
    replaces: bool = False
    """A plain assignment, which drops the old value."""
    constructs: bool = False
    """A plain assignment of a new instance: `meter = Meter()`."""
    below_limit: bool = False
    """It only runs while a counter is below a limit: `if step < 10:`."""
    keys: tuple[str, ...] = ()
    """The literal keys under which it stores: `totals["loss"] += loss`."""
    at_index: bool = False
    """It replaces an item (`slots[i] = state`), so a list does not grow."""
    truncates: bool = False
    """The stored value is a slice of the old and the new value: `torch.cat([queue, keys])[-64:]`."""
    only_if_missing: bool = False
    """It only runs if there is no value yet: `if bank is None: bank = samples`."""
    only_at_start: bool = False
    """It only runs in the first iteration of the outermost loop around it: `if step == 0:`."""
    repeats_keys: bool = False
    """Its key is the variable of an inner loop, so keys repeat: `memory[index] = state` in a loop over the samples of each epoch."""


class Occurrence(NamedTuple):
    """A use of the name, with the function that contains it and whether it is in a loop."""

    function: str
    in_loop: bool


class PassedArgument(NamedTuple):
    """A call that passes the named object to a function, as a positional or keyword argument."""

    function: str
    argument: int | str
    occurrence: Occurrence


class LengthCheck(NamedTuple):
    """A test of the length of the named object that decides whether some functions are called."""

    functions: frozenset[str]
    occurrence: Occurrence
