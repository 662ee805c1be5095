"""Reads a pickle that contains only plain data: dicts, lists, tuples, strings, bytes, numbers, booleans and None.

A pickle is a program for a stack machine, and a pickle from an untrusted source may run any code. This reader
implements only the instructions that create plain data. No instruction can import a name or call an object, so nothing
in a pickle can run. The standard library's reader can also be restricted, but it allocates gigabytes if a small file
requests a large memo.
"""

import pickle
import struct
from typing import Any


class UnsafePickle(Exception):  # noqa: N818
    """Raised if a pickle contains an instruction that does not create plain data."""


def read_plain_pickle(data: bytes) -> Any:
    """Return the content of a pickle of protocol 2 or later."""
    try:
        return _run(data)
    except (LookupError, TypeError, ArithmeticError, RecursionError, MemoryError, struct.error):
        raise ValueError("an instruction is invalid") from None
    except UnicodeDecodeError:
        raise ValueError("a string is invalid") from None


(
    _BINGET, _LONG_BINGET, _MEMOIZE, _MARK, _SHORT_BINUNICODE, _BININT1, _SETITEMS, _EMPTY_DICT, _BININT, _BININT2, _LONG1,
    _APPENDS, _EMPTY_LIST, _BINUNICODE, _APPEND, _BINPUT, _LONG_BINPUT, _SETITEM, _EMPTY_TUPLE, _TUPLE, _TUPLE1, _TUPLE2,
    _TUPLE3, _NONE, _NEWTRUE, _NEWFALSE, _BINFLOAT, _BINUNICODE8, _LONG4, _BINBYTES, _SHORT_BINBYTES, _PROTO, _FRAME, _STOP,
) = (
    code[0]
    for code in (
        pickle.BINGET, pickle.LONG_BINGET, pickle.MEMOIZE, pickle.MARK, pickle.SHORT_BINUNICODE, pickle.BININT1,
        pickle.SETITEMS, pickle.EMPTY_DICT, pickle.BININT, pickle.BININT2, pickle.LONG1, pickle.APPENDS, pickle.EMPTY_LIST,
        pickle.BINUNICODE, pickle.APPEND, pickle.BINPUT, pickle.LONG_BINPUT, pickle.SETITEM, pickle.EMPTY_TUPLE,
        pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE,
        pickle.BINFLOAT, pickle.BINUNICODE8, pickle.LONG4, pickle.BINBYTES, pickle.SHORT_BINBYTES, pickle.PROTO,
        pickle.FRAME, pickle.STOP,
    )
)  # fmt: skip
_CONSTANTS = {_NONE: None, _NEWTRUE: True, _NEWFALSE: False}
_TUPLES = {_TUPLE1: 1, _TUPLE2: 2, _TUPLE3: 3}
_LENGTHS = {
    _SHORT_BINUNICODE: 1, _BINUNICODE: 4, _BINUNICODE8: 8, _SHORT_BINBYTES: 1, _BINBYTES: 4, _LONG1: 1, _LONG4: 4,
}  # fmt: skip
"""The number of bytes that store the length of an instruction's value."""


def _run(data: bytes) -> Any:
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    at = 0
    while True:  # the most frequent instructions come first
        code = data[at]
        at += 1
        if code == _BINGET:
            stack.append(memo[data[at]])
            at += 1
        elif code == _LONG_BINGET:
            stack.append(memo[int.from_bytes(data[at : at + 4], "little")])
            at += 4
        elif code == _MEMOIZE:
            memo[len(memo)] = stack[-1]
        elif code == _BININT1:
            stack.append(data[at])
            at += 1
        elif code in _LENGTHS:
            start = at + _LENGTHS[code]
            at = start + int.from_bytes(data[at:start], "little")
            if at > len(data):
                raise ValueError("it ends in the middle of a value")
            value = data[start:at]
            if code in (_SHORT_BINUNICODE, _BINUNICODE, _BINUNICODE8):
                stack.append(value.decode("utf-8", "surrogatepass"))
            elif code in (_LONG1, _LONG4):
                stack.append(int.from_bytes(value, "little", signed=True))
            else:
                stack.append(value)
        elif code == _MARK:
            marks.append(len(stack))
        elif code == _SETITEMS:
            start = marks.pop()
            items = stack[start:]
            del stack[start:]
            _plain(stack[-1], dict).update(zip(items[::2], items[1::2], strict=True))
        elif code == _EMPTY_DICT:
            stack.append({})
        elif code == _BININT:
            stack.append(struct.unpack_from("<i", data, at)[0])
            at += 4
        elif code == _BININT2:
            stack.append(struct.unpack_from("<H", data, at)[0])
            at += 2
        elif code == _APPENDS:
            start = marks.pop()
            items = stack[start:]
            del stack[start:]
            _plain(stack[-1], list).extend(items)
        elif code == _EMPTY_LIST:
            stack.append([])
        elif code == _APPEND:
            value = stack.pop()
            _plain(stack[-1], list).append(value)
        elif code == _SETITEM:
            value, key = stack.pop(), stack.pop()
            _plain(stack[-1], dict)[key] = value
        elif code == _BINPUT:
            memo[data[at]] = stack[-1]
            at += 1
        elif code == _LONG_BINPUT:
            memo[int.from_bytes(data[at : at + 4], "little")] = stack[-1]
            at += 4
        elif code in _CONSTANTS:
            stack.append(_CONSTANTS[code])
        elif code == _BINFLOAT:
            stack.append(struct.unpack_from(">d", data, at)[0])
            at += 8
        elif code in _TUPLES or code in (_TUPLE, _EMPTY_TUPLE):
            size = _TUPLES.get(code, 0)
            start = marks.pop() if code == _TUPLE else len(stack) - size
            if start < 0:
                raise IndexError
            stack[start:] = [tuple(stack[start:])]
        elif code == _PROTO:
            at += 1
        elif code == _FRAME:
            at += 8
        elif code == _STOP:
            return stack.pop()
        else:
            raise UnsafePickle(code)


def _plain(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError
    return value
