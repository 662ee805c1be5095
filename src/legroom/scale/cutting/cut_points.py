"""Where a model is cut, said so that it holds for any score of that model: other sizes, training or evaluation."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from legroom.scale.cutting.forward_graph import CannotCut, Score


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut of one score, and the layers it lies between."""

    boundaries: tuple[int, ...]
    """Positions, 0 and the score's length included."""
    signature: tuple[str, ...]
    layers: tuple[bool, ...]
    """Of every position, whether it is a layer."""

    @property
    def stages(self) -> int:
        return len(self.boundaries) - 1

    def on(self, score: Score) -> tuple[int, ...]:
        """The same cut on another score: after as many layers, and as many operations after them as there are."""
        if tuple(score.signature()) == self.signature:
            return self.boundaries
        layers = [entry.is_module for entry in score.single()]
        if sum(layers) != sum(self.layers):
            raise CannotCut(
                "its own forward",
                f"{sum(layers)} layers are called here and {sum(self.layers)} were when it was cut",
            )
        found = [self._position(boundary, layers) for boundary in self.boundaries[1:-1]]
        return (0, *found, score.length)

    def _position(self, boundary: int, layers: Sequence[bool]) -> int:
        before = sum(self.layers[:boundary])
        operations = sum(
            1 for _ in itertools.takewhile(lambda is_layer: not is_layer, reversed(self.layers[:boundary]))
        )
        positions = [position for position, is_layer in enumerate(layers) if is_layer]
        start = positions[before - 1] + 1 if before else 0
        stop = positions[before] if before < len(positions) else len(layers)
        return min(start + operations, stop)


def cut_at(score: Score, boundaries: Sequence[int]) -> Cut:
    return Cut(
        tuple(boundaries), tuple(score.signature()), tuple(entry.is_module for entry in score.single())
    )
