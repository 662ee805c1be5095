"""Finds integer constants with a name in Python source code, and integer values in configuration files.

A constant has a name if it is assigned to a variable, is a value in a dict, or is an argument or the default value of a
parameter. Constants in strings and comments do not count, and neither do those in the `if __name__ == "__main__":`
block of an imported module, which does not run.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from legroom.observe.source.files import split_lines
from legroom.observe.source.syntax import is_main_block, key_name, parameters_of

_HEADER = re.compile(r"\s*\[+\s*(?P<name>[A-Za-z_][^\[\]{},]*?)\s*\]+\s*(?:[#;].*)?$")
"""The header of a TOML table or an INI section."""
_START = re.compile(r"(?P<indent>[ \t]*)(?P<dashes>(?:-[ \t]+)*)(?P<content>[^\s#;].*)?")
"""The indentation of a YAML line, and the dashes of list items."""
_STRING = r"""(?<!\w)(?:"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_WORDS = r"[\w.@/-]++(?:[ ][\w.@/-]++)*+"
_TOKEN = re.compile(
    rf"""
    (?P<comment>\#|(?<!\S)(?:;|//))
    | (?P<key>{_STRING}|{_WORDS})\s*[:=]\s*
      (?:[&!][^\s,{{}}\[\]]*\s*)*  # YAML anchors and tags
      (?:(?P<value>[1-9]\d*)(?![\w.])|(?P<open>[{{\[])|(?P<text>[|>][-+\d]*\s*$))?
    | {_STRING} | {_WORDS}
    | (?P<bare>[{{\[])
    | (?P<close>[}}\]])
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Constant:
    """An integer constant in the code of a script or in a configuration file."""

    name: str
    path: str
    """The name with the names of the containers and functions around it, for example `val.batch_size`."""
    value: int
    line: int
    column: int
    """The position of the number in its line. In Python, in UTF-8 bytes, as in a syntax tree."""
    begin: int
    end: int
    """The position of the number in the text."""
    text: str
    """The code around the number, with `placeholder` instead of the number."""
    is_default: bool = False
    """Whether the number is the default value of a parameter, which a caller may replace."""


def constants_in_python(source: str, placeholder: str, *, is_script: bool) -> Iterator[Constant]:
    """Yield the named positive integers of a file. `is_script` is True for the file that runs as `__main__`."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    lines = split_lines(source)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    def offset(line: int, column: int) -> int:
        # Columns are in UTF-8 bytes.
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    for name, path, number, around, is_default in _named(tree, "", is_script=is_script):
        begin = offset(number.lineno, number.col_offset)
        end = offset(number.lineno, number.end_col_offset or 0)
        first, last = offset(*around[0]), offset(*around[1])
        if around[0][0] != around[1][0]:  # several lines
            first, last = starts[number.lineno - 1], starts[number.lineno]
        text = (source[first:begin] + placeholder + source[end:last]).strip().removesuffix(",")
        value = int(number.value)  # type: ignore[arg-type]
        yield Constant(name, path, value, number.lineno, number.col_offset, begin, end, text, is_default)


def constants_in_config(source: str, placeholder: str) -> Iterator[Constant]:
    """Yield the named positive integers of a YAML, JSON, TOML or INI file."""
    end, table, key = 0, "", ""
    sections: list[tuple[int, str]] = []
    """The indentations and names of the YAML keys around a line."""
    brackets: list[str] = []
    """The names of the open `{` and `[`."""
    text_indent: int | None = None
    """The indentation of a YAML key whose text (`key: |`) continues on the following lines."""
    for number, line in enumerate(split_lines(source), 1):
        start, end = end, end + len(line)
        lead = _START.match(line)
        if lead is None or lead["content"] is None:
            continue
        indent, first = len(lead["indent"]), lead.start("content")
        if text_indent is not None and indent > text_indent:
            continue
        text_indent = None
        header = _HEADER.match(line)
        if header is not None and (brackets or not indent or not sections):
            table, sections, brackets = header["name"], [], []
            continue
        if not brackets:
            key = ""
            while sections and sections[-1][0] >= indent + bool(lead["dashes"]):
                sections.pop()
        for match in _TOKEN.finditer(line, first):
            if match["comment"]:
                break
            name = (match["key"] or "").strip("\"'")
            if match["open"] or (match["bare"] and (brackets or match.start() == first)):
                brackets.append(name or key)
                name = ""
            elif match["close"]:
                del brackets[-1:]
            elif match["text"]:
                text_indent = first
            elif match["value"]:
                path = ".".join(filter(None, (table, *(each for _, each in sections), *brackets, name)))
                text = match[0].removesuffix(match["value"]) + placeholder
                column, last = match.span("value")
                value = int(match["value"])
                yield Constant(name, path, value, number, column, start + column, start + last, text)
                name = ""
            key = name
        if key and not brackets:
            sections.append((first, key))


_Position = tuple[int, int]
_Named = tuple[str, str, ast.Constant, tuple[_Position, _Position], bool]
"""A name, its path, the number, the first and the last position of the code that shows both, and whether the number is
the default value of a parameter."""


def _named(node: ast.AST, path: str, *, is_script: bool) -> Iterator[_Named]:
    if not is_script and is_main_block(node):
        for other in node.orelse:
            yield from _named(other, path, is_script=is_script)
        return
    inner = path
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        inner = _joined(path, node.name)
    elif isinstance(node, ast.Assign):
        inner = _joined(path, key_name(node.targets[0]))
    elif isinstance(node, ast.keyword):
        inner = _joined(path, node.arg or "")
    for name, value, first in _pairs(node):
        if name and isinstance(value, ast.Constant) and is_positive_integer(value):
            outer = value if isinstance(node, ast.Dict | ast.arguments) else node
            yield (
                name,
                _joined(inner if first is not node else path, name),
                value,
                (_start(first), _end(outer)),
                isinstance(node, ast.arguments),
            )
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            yield from _named(value, _joined(inner, _string(key)), is_script=is_script)
        return
    for child in ast.iter_child_nodes(node):
        yield from _named(child, inner, is_script=is_script)


def _pairs(node: ast.AST) -> Iterator[tuple[str, ast.expr, ast.AST]]:
    """Yield names with their values, and the node at which the code of the pair starts."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                    for each, own in zip(target.elts, value.elts, strict=False):
                        yield key_name(each), own, node
                else:
                    yield key_name(target), _plain(value), node
        case ast.AnnAssign(target=target, value=value) if value is not None:
            yield key_name(target), _plain(value), node
        case ast.Dict(keys=keys, values=values):
            for key, own in zip(keys, values, strict=True):
                if key is not None:
                    yield _string(key), own, key
        case ast.keyword(arg=str(name), value=value):
            yield name, value, node
        case ast.arguments():
            for arg, default in parameters_of(node):
                if default is not None:
                    yield arg.arg, default, arg
        case ast.Call(args=[_, size, *_]) if key_name(node.func) in ("DataLoader", "BatchSampler"):
            yield "batch_size", size, node


def _plain(value: ast.expr) -> ast.expr:
    """Return the default value in `field(default=8)` and `Field(8, ...)`, or `value` itself."""
    if isinstance(value, ast.Call) and key_name(value.func) in ("field", "Field", "int"):
        named = [each.value for each in value.keywords if each.arg == "default"]
        return [*value.args, *named, value][0]
    return value


def is_positive_integer(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value > 0


def _string(node: ast.AST | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name


def _start(node: ast.AST) -> _Position:
    return node.lineno, node.col_offset  # type: ignore[attr-defined]


def _end(node: ast.AST) -> _Position:
    return node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]
