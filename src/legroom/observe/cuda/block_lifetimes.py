"""What a block was for, and where in the program it belongs, told from its whole life.

The allocator's history is read after the fact, so both questions are answered with hindsight. In this order:

- A role that was *seen* (`cuda_sightings`) is certain: parameter, gradient, optimizer state, buffer, input. When memory ran out, who held
  a block of the forward pass was looked at as well (`see_holders`): a graph, a variable, or a call at work. What the error then gave back,
  as it left the program's functions, was no decision of the program's and says nothing.
- *Workspace*: the first block of a known cuBLAS or cuBLASLt workspace size on a stream and side (forward or backward)
  that nothing was seen to claim and that was never given back. Told by size: a tensor of exactly that size, made by
  the same kind of code before the first matrix product and kept for good, would be taken for one.
- *Activation*: born outside the backward pass and given back by the engine inside it; or, while that is still to come,
  born in a forward pass with gradients that no backward pass has followed. What a checkpoint computes again, and keeps
  until the engine gives it back, is one, too.
- *Result*: of the forward pass, and given back by the program itself when a backward pass had gone by: a variable held it, even if the graph
  did as well.
- *Input*: brought to the device outside of any pass, of exactly the size of a tensor in the loader's last batch.
- *Temporary*: the rest.

Blocks made by the engine's threads have no Python stack. A gradient belongs to its parameter's module, and to the line
at which that module last ran forward. Another block of the backward pass belongs to whatever comes next in the history
on the same pass: a gradient, or an activation given back (an operation's own result, or its input), since an operation
allocates first, then leaves gradients, then lets go of what it had saved; where nothing comes next, to what came last.
So a line can be off by one operation there, never by more than the distance between two parameters.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from legroom.memory.events import Category, Frame, Phase
from legroom.observe.cuda.markers import BACKWARD, FORWARD, INFERENCE, OPTIMIZER, OTHER, PHASES

RANKS = (
    Category.PARAMETER,
    Category.GRADIENT,
    Category.OPTIMIZER_STATE,
    Category.BUFFER,
    Category.INPUT,
    Category.ACTIVATION,
    Category.RESULT,
    Category.TEMPORARY,
)
"""Of two roles seen for one block, the earlier in this list holds."""


class Life:
    """One block from its allocation on."""

    __slots__ = (
        "activity",
        "address",
        "category",
        "charged",
        "frame",
        "freed_by_module",
        "freed_in",
        "from_engine",
        "id",
        "is_batch_sized",
        "module",
        "op",
        "passes_at_birth",
        "passes_seen",
        "phase",
        "requested",
        "seen_as",
        "seen_module",
        "step",
        "stream",
        "time",
        "told",
    )

    def __init__(
        self, number: int, address: int, requested: int, charged: int, stream: int, time: float
    ) -> None:
        self.id = number
        self.address = address
        self.requested = requested
        self.charged = charged
        self.stream = stream
        self.time = time
        self.step = 0
        self.activity: str = OTHER
        self.phase = Phase.OTHER
        self.module = ""
        self.frame: Frame | None = None
        self.op = ""
        self.from_engine = False
        self.is_batch_sized = False
        self.passes_at_birth = 0
        """Backward passes begun before it was born."""
        self.passes_seen = 0
        """Backward passes begun since, while it lived."""
        self.freed_in: str | None = None
        """The activity at its end; None while it lives."""
        self.freed_by_module = False
        """Whether a module was at work at its end."""
        self.seen_as: Category | None = None
        self.seen_module = ""
        self.category = Category.TEMPORARY
        self.told: Category | None = None
        """The category last told to the sink."""

    def see(self, category: Category, module: str) -> None:
        """It was seen in this role."""
        if self.seen_as is None or RANKS.index(category) < RANKS.index(self.seen_as):
            self.seen_as = category
            self.seen_module = module


class Workspaces:
    """Finds the blocks that matrix libraries keep for themselves, for each thread that computes: the program's and the engine's."""

    def __init__(self, sizes: frozenset[int]) -> None:
        self._sizes = sizes
        self._found: dict[tuple[int, int, bool], int] = {}

    def claim(self, life: Life) -> bool:
        if life.requested not in self._sizes or life.freed_in is not None or life.activity == OPTIMIZER:
            return False
        return self._found.setdefault(_side(life), life.id) == life.id

    def release(self, life: Life) -> None:
        """It was given back after all, so it was none."""
        if self._found.get(_side(life)) == life.id:
            del self._found[_side(life)]


def _side(life: Life) -> tuple[int, int, bool]:
    """What there is one workspace for. The engine's thread also computes again what a checkpoint left out."""
    return life.requested, life.stream, life.activity == BACKWARD


def see_holders(
    lives: Iterable[Life], workspaces: Workspaces, roles: Mapping[int, Category], *, in_backward: bool
) -> None:
    """Memory has run out, and these blocks are alive: `roles` says what they are by who holds them (address → role). What the forward pass
    made and nobody was seen to hold awaits its backward pass, or its turn in the one that failed."""
    for life in lives:
        if life.seen_as is not None or workspaces.claim(life):
            continue
        role = roles.get(life.address)
        if role is None and life.activity != INFERENCE and life.passes_seen <= in_backward:
            role = Category.ACTIVATION if life.phase is Phase.FORWARD else None
        if role is Category.ACTIVATION or (role is not None and life.phase is Phase.FORWARD):
            life.see(role, "")


def category_of(life: Life, workspaces: Workspaces) -> Category:
    """What a block was for, as far as its life is known by now."""
    if life.seen_as is not None:
        return life.seen_as
    if workspaces.claim(life):
        return Category.WORKSPACE
    if life.activity == BACKWARD:
        recomputed = life.module != "" and not life.from_engine
        kept = life.freed_in == BACKWARD and not life.freed_by_module
        return Category.ACTIVATION if recomputed and kept else Category.TEMPORARY
    if life.freed_in == BACKWARD:
        return Category.ACTIVATION
    if life.freed_in is not None and life.phase is Phase.FORWARD and life.passes_seen:
        return Category.RESULT
    awaits_backward = life.freed_in is None and life.passes_seen == 0
    if awaits_backward and life.phase is Phase.FORWARD and life.activity in (FORWARD, OTHER):
        return Category.ACTIVATION
    if life.is_batch_sized and life.phase is Phase.OTHER:
        return Category.INPUT
    return Category.TEMPORARY


class Place(NamedTuple):
    module: str
    frame: Frame | None


class ModuleLines:
    """The line at which each module last ran forward."""

    def __init__(self) -> None:
        self._lines: dict[str, Frame] = {}

    def note(self, module: str, frame: Frame | None) -> None:
        if frame is not None:
            self._lines[module] = frame

    def find(self, module: str) -> Frame | None:
        """Of the module, or of the nearest one around it that has a line."""
        while module:
            line = self._lines.get(module)
            if line is not None:
                return line
            module = module.rpartition(".")[0]
        return None


def place_backward(passes: Sequence[Sequence[tuple[Life, bool]]], lines: ModuleLines) -> None:
    """Gives blocks that the engine made a module and a line. Each pass lists what it made and (True) freed, in order."""
    for events in passes:
        coming: Place | None = None
        for life, freed in reversed(events):
            place = _own_place(life, freed, lines)
            if place is not None:
                coming = place
            if not freed:
                _settle(life, place or coming)
        last: Place | None = None
        for life, freed in events:
            place = _own_place(life, freed, lines)
            if place is not None:
                last = place
            if not freed and life.frame is None:
                _settle(life, last)


def _own_place(life: Life, freed: bool, lines: ModuleLines) -> Place | None:
    """Where a block stands by itself: an activation where it was made, a gradient where its parameter is."""
    if freed:
        return (
            Place(life.module, life.frame) if life.activity != BACKWARD and life.frame is not None else None
        )
    if life.seen_as is Category.GRADIENT and life.seen_module:
        return Place(life.seen_module, life.frame or lines.find(life.seen_module))
    return None


def _settle(life: Life, place: Place | None) -> None:
    if place is not None:
        life.module = life.module or place.module
        life.frame = life.frame or place.frame


def phase_of(activity: str, graph_open: bool) -> Phase:
    """Between a forward pass with gradients and its backward pass, the loss is computed: that is forward, too."""
    return Phase.FORWARD if activity == OTHER and graph_open else PHASES[activity]
