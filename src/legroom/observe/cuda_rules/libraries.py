"""Libraries that look for fake tensors and then do otherwise than they would on a GPU.

transformers takes a fake tensor for a sign that a graph is being traced, and builds attention masks that it skips on real
runs (an all-ones mask costs a matrix of queries × keys for each batch). Its question is answered with no.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any


class FakesUnseen:
    """Answers for libraries that are loaded already, and for those that the program loads later."""

    def __init__(self) -> None:
        self._originals: dict[str, Any] = {}

    def check(self) -> None:
        """Called now and then: has a library been loaded meanwhile?"""
        for module_name, function in _QUESTIONS.items():
            module = sys.modules.get(module_name)
            if module is None or module_name in self._originals or not hasattr(module, function):
                continue
            self._originals[module_name] = getattr(module, function)
            setattr(module, function, _no)

    def restore(self) -> None:
        for module_name, original in self._originals.items():
            setattr(sys.modules[module_name], _QUESTIONS[module_name], original)
        self._originals.clear()

    @contextlib.contextmanager
    def active(self) -> Iterator[Callable[[], None]]:
        self.check()
        try:
            yield self.check
        finally:
            self.restore()


def _no(tensor: Any) -> bool:
    return False


_QUESTIONS = {"transformers.utils.import_utils": "is_fake_tensor"}
"""Module → the function in it that asks whether a tensor is a fake one."""
