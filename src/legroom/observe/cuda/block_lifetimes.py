"""Determines the category and the code location of a block from its whole lifetime.

The allocator's history is read after the run, so the whole lifetime of a block is known. The first category that
applies is used:

- A *recorded* category (`address_owners`) is certain. The recorded categories are parameter, gradient, optimizer state,
  buffer and input. When memory runs out, Legroom also finds the graph, variable or running call that retains each block
  of the forward pass (`apply_holder_categories`). Blocks that were freed while the exception propagated are ignored,
  because the program itself did not free these blocks.
- A *workspace* has the size of a cuBLAS or cuBLASLt workspace and no other owner, and is never freed. Each stream has
  one workspace for the forward pass and one for the backward pass. A tensor of exactly the same size is mistaken for a
  workspace if it is allocated before the first matrix product and never freed.
- An *activation* is allocated outside the backward pass and freed in the backward pass by the autograd engine. A block
  that is not freed yet is an activation if it was allocated in a forward pass with gradients that no backward pass has
  followed. Blocks that a checkpoint recomputes and that the engine frees are activations too.
- A *result* is allocated by the forward pass, and freed by the program after a backward pass. A variable retained the
  block, even if the graph also retained the block.
- An *input* is allocated outside any pass, with exactly the size of a tensor in the last batch of the loader.
- All other blocks are *temporary*.

Blocks that the engine's threads allocate have no Python stack. A gradient belongs to the module of its parameter, and
to the line that last called this module. All other blocks of a backward pass get the location of the next block in the
same pass whose location is known. A backward operation allocates memory, then sets gradients, then frees saved tensors.
The next block is therefore a gradient or a freed activation (the result or input of an operation). If no block with a
known location follows, the previous block with a known location is used. The reported line can belong to a neighboring
operation, but not to an operation beyond the next one with parameters.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from legroom.memory.event_base import Category, Frame, Phase
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
"""If a block has two recorded categories, the category that comes first in this list applies."""


class BlockLifetime:
    __slots__ = (
        "activity",
        "address",
        "block_size",
        "category",
        "existed_before",
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
        "sent_category",
        "step",
        "stream",
        "time",
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
        self.existed_before = False
        self.op = ""
        self.from_engine = False
        self.is_batch_sized = False
        self.passes_at_allocation = 0
        self.passes_since = 0
        self.freed_in: str | None = None
        """What the program was doing when the block was freed, or None while the block is alive."""
        self.freed_by_module = False
        self.known_category: Category | None = None
        self.known_module = ""
        self.category = Category.TEMPORARY
        self.sent_category: Category | None = None

    def see(self, category: Category, module: str) -> None:
        if self.known_category is None or PRECEDENCE.index(category) < PRECEDENCE.index(self.known_category):
            self.known_category = category
            self.known_module = module


class LibraryWorkspaces:
    """For each size and stream, the program's thread has one cuBLAS or cuBLASLt workspace, and the autograd engine's
    thread has another.
    """

    def __init__(self, sizes: frozenset[int]) -> None:
        self._sizes = sizes
        self._found: dict[tuple[int, int, bool], int] = {}

    def claim(self, block: BlockLifetime) -> bool:
        if block.requested not in self._sizes or block.freed_in is not None or block.activity == OPTIMIZER:
            return False
        return self._found.setdefault(_side(block), block.id) == block.id

    def release(self, block: BlockLifetime) -> None:
        # A workspace is never freed.
        if self._found.get(_side(block)) == block.id:
            del self._found[_side(block)]


def _side(block: BlockLifetime) -> tuple[int, int, bool]:
    """Return the key of a workspace: its size, its stream, and whether the autograd engine's thread allocated it. The
    engine's thread also recomputes checkpoints.
    """
    return block.requested, block.stream, block.activity == BACKWARD


def apply_holder_categories(
    blocks_by_address: Iterable[BlockLifetime],
    workspaces: LibraryWorkspaces,
    categories: Mapping[int, Category],
    *,
    in_backward: bool,
) -> None:
    """Assign categories to the blocks that were alive when memory ran out. `categories` maps addresses to the
    categories of the objects that retain the blocks. A block of the forward pass that no known object retains is
    treated as an activation if no backward pass has completed since its allocation.
    """
    for block in blocks_by_address:
        if block.known_category is not None or workspaces.claim(block):
            continue
        category = categories.get(block.address)
        if category is None and block.activity != INFERENCE and block.passes_since <= in_backward:
            category = Category.ACTIVATION if block.phase is Phase.FORWARD else None
        if category is None:
            continue
        is_result = category is Category.RESULT and block.phase is Phase.OTHER and not block.is_batch_sized
        if category is Category.ACTIVATION or is_result or block.phase is Phase.FORWARD:
            block.see(category, "")


def category_of(block: BlockLifetime, workspaces: LibraryWorkspaces) -> Category:
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
    def __init__(self) -> None:
        self._lines: dict[str, Frame] = {}

    def note(self, module: str, frame: Frame | None) -> None:
        if frame is not None:
            self._lines[module] = frame

    def find(self, module: str) -> Frame | None:
        """Return the line of the module, or of the nearest parent module with a known line."""
        while module:
            line = self._lines.get(module)
            if line is not None:
                return line
            module = module.rpartition(".")[0]
        return None


def locate_backward_blocks(
    passes: Sequence[Sequence[tuple[BlockLifetime, bool]]], lines: ModuleLines
) -> None:
    """Assign modules and lines to the blocks that the autograd engine allocated. `passes` contains a list for each
    backward pass. Each item of the list is a pair of a block and a flag: True if the block was freed, or False if it
    was allocated.
    """
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
    """Return the location that is known for the block itself, or None if it must be derived from other blocks. A freed
    activation has the location of its allocation. A gradient has the module of its parameter.
    """
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
    """Return the phase of an activity. The loss computation between the forward and the backward pass counts as part
    of the forward pass.
    """
    return Phase.FORWARD if activity == OTHER and graph_open else PHASES[activity]
