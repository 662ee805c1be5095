"""The results of one heap scan, and the limits that both the scans and the search for suspects use."""

import weakref
from collections.abc import Mapping

import torch

from legroom.observe.leaks.graph_ages import GraphPart
from legroom.observe.leaks.named_sizes import NamedTensor

MAX_SCANS = 7
RARE_SCANS = 3
"""If scans are infrequent, tensors are reported as a leak only if each of this many scans found new storages. These
storages must still be alive in a single container.
"""
MAX_SEARCHES = 4
"""The maximum number of tensors of one kind whose holders are searched for after a scan."""
MAX_ENSEMBLE = 8
"""A program probably retains up to this many models in a container on purpose."""
NUMBER_BYTES = 8
"""A host tensor of at most this many bytes is treated as a single number. A list of numbers is not reported as a leak.
"""
MIN_HOST_BYTES = 4096
"""Host memory that grows by fewer than this many bytes per iteration is not reported if the program uses a device, because
it takes more than 250,000 iterations to fill 1 GB.
"""
UNROLLED_CALLS = 100
"""The maximum number of calls to a model that may be the time steps of one graph."""

Targets = list["weakref.ref[torch.Tensor]"]
"""The tensors whose holders must be found. During the search, Legroom must not keep references to these tensors."""


class Observations:
    """The results of one scan, without references to tensors."""

    def __init__(self, iteration: int, scans: int, created_in: dict[int, int], *, suspicious: bool) -> None:
        self.iteration = iteration
        self.scans = scans
        """The number of scans in this series so far."""
        self.created_in = created_in
        """Maps the `id` of a tensor to the iteration in which it was created or first found."""
        self.suspicious = suspicious
        """Whether another scan should follow."""
        self.iterations_retained = 0
        self.nodes_per_iteration = 0
        self.bytes_per_iteration = 0
        self.parts: Mapping[int, GraphPart] = {}
        """Maps the `id` of each tensor in `old` and `carrying` to the part of its graph (nodes and bytes) that one
        iteration created."""
        self.old: Targets = []
        """Tensors from earlier iterations that still have a graph."""
        self.carrying: Targets = []
        """New tensors whose graph includes nodes of earlier iterations."""
        self.accumulated: Targets = []
        self.accumulated_sizes: dict[int, int] = {}
        """Maps the `id` of each tensor that was added between two scans, and stayed alive, to its size in bytes."""
        self.iterations_between = 1
        """The number of iterations in which the tensors in `accumulated_sizes` were added."""
        self.renews = False
        """Whether each iteration frees all tensors in `accumulated` and creates a larger number of tensors instead."""
        self.views: dict[int, int] = {}
        """Maps the `id` of a tensor in `accumulated` to the `id` of the tensor in `accumulated_sizes` with the same
        storage."""
        self.on_host: frozenset[int] = frozenset()
        """The `id`s of the tensors in `accumulated` that are on the host, if the program also has tensors on a device."""
        self.on_device: frozenset[int] = frozenset()
        self.with_graph: frozenset[int] = frozenset()
        """The `id`s of the tensors in `accumulated` that have a graph."""
        self.nodes_of_iteration = 0
        self.only_sums = False
        """Whether only a sum of losses counts as a leak, because the calls to the model may be the steps of one
        sequence."""
        self.with_gradient_graph: Targets = []
        """Parameters whose gradients have a graph: the oldest and the newest parameter."""
        self.gradient_iterations = 0
        """The number of iterations whose graphs are kept alive by the gradients of parameters."""
        self.enlarged: dict[NamedTensor, list[int]] = {}
        """The sizes of each variable whose tensor was larger in each of the last scans."""

    @property
    def has_growth(self) -> bool:
        """Whether there is growth that the variables and the source code of the program may explain."""
        return bool(self.iterations_retained or self.accumulated or self.enlarged)
