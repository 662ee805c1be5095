"""Determines whether a variable belongs to a running call that is made in a loop.

The tensors of such a variable are freed when the call ends.
"""

import inspect
import sys
from types import CodeType, FrameType

from legroom.observe.holders.descriptions import StoredName
from legroom.observe.holders.python_names import locals_of
from legroom.observe.leaks.named_sizes import NamedTensor
from legroom.observe.source.files import is_in_loop
from legroom.observe.source.user_files import is_user_file


def is_owned_by_call(owner: int) -> bool:
    """Return whether an object is the value of a local variable of a running function that was called, directly or
    indirectly, from a loop. The values of arguments belong to the caller, so they are not included.
    """
    frame: FrameType | None = sys._getframe(1)
    inside = False
    while frame is not None:
        code = frame.f_code
        if is_user_file(code.co_filename):
            if inside and is_in_loop(code.co_filename, frame.f_lineno or 0):
                return True
            if code.co_flags & inspect.CO_OPTIMIZED:
                arguments = _arguments_of(code)
                inside = inside or any(
                    id(value) == owner and name not in arguments for name, value in locals_of(frame)
                )
        frame = frame.f_back if code.co_name != "<module>" else None
    return False


def is_local_to_call(root: StoredName | NamedTensor) -> bool:
    """Return whether a local variable belongs to a function that was called, directly or indirectly, from a loop. Such
    a variable is freed when the call ends.
    """
    frame: FrameType | None = sys._getframe(1)
    inside = from_enclosing = False
    while frame is not None:
        code = frame.f_code
        if inside and is_user_file(code.co_filename) and is_in_loop(code.co_filename, frame.f_lineno or 0):
            return True
        owns_it = root.name in code.co_cellvars if from_enclosing else code.co_name == root.function
        if not inside and owns_it and code.co_filename == root.file:
            if root.name in _arguments_of(code):
                return False  # an argument such as `self` belongs to the caller
            # A comprehension or an inner function may use a variable of the enclosing function.
            from_enclosing = root.name in code.co_freevars
            inside = not from_enclosing
        # The code that runs the script is not a loop of the script.
        frame = frame.f_back if code.co_name != "<module>" else None
    return False


def _arguments_of(code: CodeType) -> tuple[str, ...]:
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
