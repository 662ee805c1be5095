"""Finds dict entries that the program can never read or remove, because it does not keep their keys (LG101)."""

import re
from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.flow.facts import StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, is_call_of, last_name, walk
from legroom.diagnose.lint.rule import Problem

_CACHE = re.compile(r"^(?:\w*Cache|past_key_values?|kv_cache|past)$")
"""Names of the key-value cache of a language model."""


def unreachable_entries(program: Program) -> Iterator[Problem]:
    """Find `self.sessions[uuid.uuid4().hex] = session`, where each session contains the key-value cache of a model."""
    for store in program.stores:
        if store.how != "item" or not store.varying_key or not _has_random_key(store):
            continue
        if isinstance(store.function.node, cst.Module) or store.function.owns(store.target):
            continue
        if _contains_cache(program, store) and not _is_read(program, store):
            yield Problem(
                node=store.expression,
                message=f"`{store.target}` keeps the cache of every request: the key is not stored, so nothing can remove the entry",
                help="Use a local variable for the request, or store the key so that the entry can be removed when the session ends",
            )


def _has_random_key(store: StoreFact) -> bool:
    target = store.node.targets[0].target if isinstance(store.node, cst.Assign) else None
    return isinstance(target, cst.Subscript) and any(
        isinstance(node, cst.Call) and (is_call_of(node, "uuid4") or is_call_of(node, "uuid1"))
        for each in target.slice
        for node in walk(each)
    )


def _contains_cache(program: Program, store: StoreFact) -> bool:
    known = program.classes.get(store.value.class_name or "")
    nodes = [*walk(store.expression), *(walk(known.node) if known is not None else ())]
    return any(_CACHE.search(last_name(path)) for node in nodes if (path := dotted(node)) is not None) or any(
        each.is_tensor and not each.host for each in (store.value, *store.value.contents)
    )


def _is_read(program: Program, store: StoreFact) -> bool:
    """Return True if the program does more with the dict than create it, store entries and count them."""
    for node, parent in program.other_uses(store):
        if isinstance(parent, cst.Attribute) and parent.attr is node:
            continue  # the name of the attribute itself
        call = program.parent.get(parent) if isinstance(parent, cst.Arg) else None
        if call is None or not is_call_of(call, "len"):
            return True
    return False
