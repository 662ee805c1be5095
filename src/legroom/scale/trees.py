"""Nested arguments and results, taken apart and put together as torch itself does it.

`torch.utils._pytree` is private by name only: export, functorch and libraries (which register their own outputs with it) stand on it, and it is
the same from torch 2.6 on. Were it to go, whatever tells containers from leaves in the same way can take its place here.
"""

from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map as tree_map
from torch.utils._pytree import tree_map_only as tree_map_only
