"""Reads a pickle that contains only plain data: dicts, lists, tuples, strings, numbers, booleans and None.

A pickle is a program, and the pickles of untrusted sources may run any code. This reader supports only the instructions
that create plain data. It has no instruction that imports a name or calls an object, so nothing in a pickle can run.
"""

import pickle
from io import BytesIO
from typing import Any

_PLAIN = [
    "PROTO",
    "FRAME",
    "STOP",
    "MARK",
    "NONE",
    "NEWTRUE",
    "NEWFALSE",
    "BININT",
    "BININT1",
    "BININT2",
    "LONG1",
    "LONG4",
    "BINFLOAT",
    "SHORT_BINUNICODE",
    "BINUNICODE",
    "BINUNICODE8",
    "SHORT_BINBYTES",
    "BINBYTES",
    "EMPTY_LIST",
    "APPEND",
    "APPENDS",
    "EMPTY_TUPLE",
    "TUPLE",
    "TUPLE1",
    "TUPLE2",
    "TUPLE3",
    "EMPTY_DICT",
    "SETITEM",
    "SETITEMS",
    "MEMOIZE",
    "BINPUT",
    "LONG_BINPUT",
    "BINGET",
    "LONG_BINGET",
]


class UnsafePickle(Exception):  # noqa: N818
    """A pickle contains an instruction that does not create plain data."""


class _Instructions(dict[int, Any]):
    """The supported instructions."""

    def __missing__(self, code: int) -> Any:
        raise UnsafePickle(code)


class _PlainUnpickler(pickle._Unpickler):
    # Python's own reader keeps its memo in a dict. The reader in C allocates memory for any memo index in the file.
    dispatch = _Instructions({getattr(pickle, name)[0]: pickle._Unpickler.dispatch[getattr(pickle, name)[0]] for name in _PLAIN})  # fmt: skip


def read_plain_pickle(data: bytes) -> Any:
    """Return the content of a pickle.

    Raises UnsafePickle if the pickle contains other instructions, and ValueError if the data is not a complete pickle.
    """
    try:
        return _PlainUnpickler(BytesIO(data)).load()
    except UnsafePickle:
        raise
    except Exception as error:
        raise ValueError(str(error)) from None
