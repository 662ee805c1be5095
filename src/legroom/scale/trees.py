"""Traverses nested arguments and results with torch's own functions.

`torch.utils._pytree` is private, but torch.export, functorch and libraries rely on it, and it has not changed since
torch 2.6. If torch removes this module, an equivalent can be implemented in this file.
"""

from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map as tree_map
from torch.utils._pytree import tree_map_only as tree_map_only
