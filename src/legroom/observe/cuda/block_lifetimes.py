"""What a block was for, and where in the program it belongs, told from its whole block.

The allocator's history is read after the fact, so both questions are answered with hindsight. In this order:

- A role that was *seen* (`cuda_sightings`) is certain: parameter, gradient, optimizer state, buffer, input. When memory ran out, who held
  a block of the forward pass was looked at as well (`apply_holder_categories`): a graph, a variable, or a call at work. What the error then gave back,
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

BlocksInUse made by the engine's threads have no Python stack. A gradient belongs to its parameter's module, and to the line
at which that module last ran forward. Another block of the backward pass belongs to whatever comes next in the history
on the same pass: a gradient, or an activation given back (an operation's own result, or its input), since an operation
allocates first, then leaves gradients, then lets go of what it had saved; where nothing comes next, to what came last.
So a line can be off by one operation there, never by more than the distance between two parameters.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from legroom.memory.events import Category, Frame, Phase
from legroom.observe.cuda.markers import BACKWARD, FORWARD, INFERENCE, OPTIMIZER, OTHER, PHASES

PRECEDENCE = (
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


class BlockLifetime:
    """One block from its allocation on."""

    __slots__ = (
        "activity",
        "address",
        "block_size",
        "category",
        "frame",
        "freed_by_module",
        "freed_in",
        "from_engine",
        "id",
        "is_batch_sized",
        "known_category",
        "known_module",
        "module",
        "op",
        "passes_at_allocation",
        "passes_since",
        "phase",
        "requested",
        "step",
        "stream",
        "time",
        "told",
    )

    def __init__(
        self, number: int, address: int, requested: int, block_size: int, stream: int, time: float
    ) -> None:
        self.id = number
        self.address = address
        self.requested = requested
        self.block_size = block_size
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
        self.passes_at_allocation = 0
        """Backward passes begun before it was born."""
        self.passes_since = 0
        """Backward passes begun since, while it lived."""
        self.freed_in: str | None = None
        """The activity at its end; None while it blocks_by_address."""
        self.freed_by_module = False
        """Whether a module was at work at its end."""
        self.known_category: Category | None = None
        self.known_module = ""
        self.category = Category.TEMPORARY
        self.told: Category | None = None
        """The category last told to the sink."""

    def see(self, category: Category, module: str) -> None:
        """It was seen in this role."""
        if self.known_category is None or PRECEDENCE.index(category) < PRECEDENCE.index(self.known_category):
            self.known_category = category
            self.known_module = module


class LibraryWorkspaces:
    """Finds the blocks that matrix libraries keep for themselves, for each thread that computes: the program's and the engine's."""

    def __init__(self, sizes: frozenset[int]) -> None:
        self._sizes = sizes
        self._found: dict[tuple[int, int, bool], int] = {}

    def claim(self, block: BlockLifetime) -> bool:
        if block.requested not in self._sizes or block.freed_in is not None or block.activity == OPTIMIZER:
            return False
        return self._found.setdefault(_side(block), block.id) == block.id

    def release(self, block: BlockLifetime) -> None:
        """It was given back after all, so it was none."""
        if self._found.get(_side(block)) == block.id:
            del self._found[_side(block)]


def _side(block: BlockLifetime) -> tuple[int, int, bool]:
    """What there is one workspace for. The engine's thread also computes again what a checkpoint left out."""
    return block.requested, block.stream, block.activity == BACKWARD


def apply_holder_categories(
    blocks_by_address: Iterable[BlockLifetime],
    workspaces: LibraryWorkspaces,
    roles: Mapping[int, Category],
    *,
    in_backward: bool,
) -> None:
    """Memory has run out, and these blocks are alive: `roles` says what they are by who holds them (address → role). What the forward pass
    made and nobody was seen to hold awaits its backward pass, or its turn in the one that failed."""
    for block in blocks_by_address:
        if block.known_category is not None or workspaces.claim(block):
            continue
        role = roles.get(block.address)
        if role is None and block.activity != INFERENCE and block.passes_since <= in_backward:
            role = Category.ACTIVATION if block.phase is Phase.FORWARD else None
        if role is Category.ACTIVATION or (role is not None and block.phase is Phase.FORWARD):
            block.see(role, "")


def category_of(block: BlockLifetime, workspaces: LibraryWorkspaces) -> Category:
    """What a block was for, as far as its block is known by now."""
    if block.known_category is not None:
        return block.known_category
    if workspaces.claim(block):
        return Category.WORKSPACE
    if block.activity == BACKWARD:
        recomputed = block.module != "" and not block.from_engine
        kept = block.freed_in == BACKWARD and not block.freed_by_module
        return Category.ACTIVATION if recomputed and kept else Category.TEMPORARY
    if block.freed_in == BACKWARD:
        return Category.ACTIVATION
    if block.freed_in is not None and block.phase is Phase.FORWARD and block.passes_since:
        return Category.RESULT
    awaits_backward = block.freed_in is None and block.passes_since == 0
    if awaits_backward and block.phase is Phase.FORWARD and block.activity in (FORWARD, OTHER):
        return Category.ACTIVATION
    if block.is_batch_sized and block.phase is Phase.OTHER:
        return Category.INPUT
    return Category.TEMPORARY


class CodeLocation(NamedTuple):
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


def locate_backward_blocks(
    passes: Sequence[Sequence[tuple[BlockLifetime, bool]]], lines: ModuleLines
) -> None:
    """Gives blocks that the engine made a module and a line. Each pass lists what it made and (True) freed, in order."""
    for events in passes:
        coming: CodeLocation | None = None
        for block, freed in reversed(events):
            place = _own_location(block, freed, lines)
            if place is not None:
                coming = place
            if not freed:
                _set_location(block, place or coming)
        last: CodeLocation | None = None
        for block, freed in events:
            place = _own_location(block, freed, lines)
            if place is not None:
                last = place
            if not freed and block.frame is None:
                _set_location(block, last)


def _own_location(block: BlockLifetime, freed: bool, lines: ModuleLines) -> CodeLocation | None:
    """Where a block stands by itself: an activation where it was made, a gradient where its parameter is."""
    if freed:
        return (
            CodeLocation(block.module, block.frame)
            if block.activity != BACKWARD and block.frame is not None
            else None
        )
    if block.known_category is Category.GRADIENT and block.known_module:
        return CodeLocation(block.known_module, block.frame or lines.find(block.known_module))
    return None


def _set_location(block: BlockLifetime, place: CodeLocation | None) -> None:
    if place is not None:
        block.module = block.module or place.module
        block.frame = block.frame or place.frame


def phase_of(activity: str, graph_open: bool) -> Phase:
    """Between a forward pass with gradients and its backward pass, the loss is computed: that is forward, too."""
    return Phase.FORWARD if activity == OTHER and graph_open else PHASES[activity]
