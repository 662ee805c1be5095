"""Weak references to the user's tensors.

`torch.utils.swap_tensors` refuses tensors that have weak references. Programs call this function, and `Module.to` calls
it for tensor subclasses, such as quantized weights and lazy parameters. Without this module, such programs would fail
only because Legroom observes them. The references of this module do not count.
"""

import types
import weakref
from typing import Any, TypeVar

import torch.utils

_Referent = TypeVar("_Referent")


class TensorReference(weakref.ref[_Referent]):
    """A weak reference that stays valid if the contents of its tensor are swapped with those of another tensor."""

    __slots__ = ()


def _references_of_others(tensor: Any) -> list[Any]:
    return [each for each in weakref.getweakrefs(tensor) if type(each) is not TensorReference]


def _ignore_in_swaps() -> None:
    """Replace the `weakref` module that `torch.utils` reads. If torch no longer reads it there, the references count as
    in torch.
    """
    if getattr(torch.utils, "weakref", None) is weakref:
        torch.utils.weakref = types.SimpleNamespace(**{**vars(weakref), "getweakrefs": _references_of_others})  # type: ignore


_ignore_in_swaps()
