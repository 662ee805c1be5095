"""Data classes for the uses of one name in source code."""

from typing import NamedTuple


class StoringStatement(NamedTuple):
    file: str
    line: int
    function: str
    uses_itself: bool
    """Whether the new value is computed from the old value, as in `total = total + loss`, `total += loss` and `h =
    cell(x, h)`.
    """
    adds: bool
    """Whether the new value is a sum, as in `total = total + loss` and `total += loss`."""
    concatenates: bool
    """Whether a function enlarges the old value, as in `torch.cat([history, out])`."""
    stores_number: bool
    """Whether the stored value is a number or a string, as in `losses.append(loss.item())`."""
    in_loop: bool
    replaces: bool = False
    """Whether the statement is a plain assignment, which drops the old value."""
    constructs: bool = False
    """Whether the statement is a plain assignment of a new instance, as in `meter = Meter()`."""
    below_limit: bool = False
    """Whether the statement only runs while a counter is below a limit, as in `if step < 10:`."""
    keys: tuple[str, ...] = ()
    """The literal keys under which the statement stores the value, as in `totals["loss"] += loss`."""
    at_index: bool = False
    """Whether the statement assigns to an index (`slots[i] = state`), which does not make a list longer."""
    truncates: bool = False
    """Whether the stored value is a slice of the old and new values together, as in `torch.cat([queue, keys])[-64:]`.
    """
    only_if_missing: bool = False
    """Whether the statement only runs if the name has no value yet, as in `if bank is None: bank = samples`."""
    only_at_start: bool = False
    """Whether the statement only runs in the first iteration of the outermost loop, as in `if step == 0:`."""
    repeats_keys: bool = False
    """Whether the key is the variable of an inner loop, so each pass over that loop uses the same keys. An example is
    `memory[index] = state` in a loop over the samples of each epoch.
    """
    stores_initial_value: bool = False
    """Whether the stored value is a new tensor with constant values, as in `self.hidden = torch.zeros(2, 8)`."""
    by_alias: bool = False
    """Whether the statement uses another variable that refers to the same object, as in `node = node.parent` followed
    by `node.add(child)`."""


class Occurrence(NamedTuple):
    function: str
    in_loop: bool
    removes_one: bool = False
    keys: tuple[str, ...] = ()
    """The literal keys of the item that is used, as in `cache["val"].clear()`."""
    key_parameter: str = ""
    """The function parameter that is used as the key, as in `def reset(self, key): self.store[key].clear()`."""
    only_at: str = ""
    """The length at which the code runs, as a name or a number, as in `if len(items) == capacity: items.pop(0)`. If a
    loop adds two items at once, the container may never have exactly this length.
    """


class PassedArgument(NamedTuple):
    function: str
    argument: int | str
    occurrence: Occurrence


class LengthCheck(NamedTuple):
    """A check of the length of the container. The result determines whether the program calls `functions`."""

    functions: frozenset[str]
    occurrence: Occurrence
