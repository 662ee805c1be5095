"""LG104: Activations of earlier steps are still alive

What autograd saved in a step that is over has not been released. A backward pass releases it, so either there
was none, or it was called with `retain_graph=True`, or a state carried from step to step (a recurrent
network's) still has its history.

```python
# instead of
hidden = model(x, hidden)                # the graph reaches back to the first step
loss.backward(retain_graph=True)
# write
hidden = model(x, hidden.detach())
loss.backward()
```

Effect: the bytes of those activations.

**In code** (`legroom lint`): a state goes into a model and comes back under the same name, in a loop with a backward pass, and
nothing in the loop detaches it or makes it anew. A loop over the time steps inside one step is fine.

**Fix**: unsafe. `.detach()` on the state that goes in: gradients then stop at the step's beginning, which is what truncated
back-propagation through time means; a tuple of states gets each of its parts detached.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.edits import Edit, append_to, replace
from legroom.diagnose.lint.facts import Store
from legroom.diagnose.lint.kinds import Kind
from legroom.diagnose.lint.lifetimes import is_let_go_elsewhere, owner_is_self, repeats, survives
from legroom.diagnose.lint.program import Program
from legroom.diagnose.lint.results import names_a_loss
from legroom.diagnose.lint.rule import Problem
from legroom.diagnose.lint.syntax import dotted, last_name, names_in, walk

CODE = "LG104"


def check(program: Program) -> Iterator[Problem]:
    told: set[cst.Call] = set()
    for store in program.stores:
        call = _call_with_itself(program, store)
        if call is None or store.no_grad or call in told:
            continue
        in_loop = any(loop.backward and survives(program, store.target, loop) for loop in store.loops)
        if in_loop or _is_kept_by_module(program, store):
            told.add(call)
            argument = _state_argument(call, store.target)
            yield Problem(
                node=argument or call,
                message=f"`{store.target}` goes from step to step with its history: the graph reaches back to the "
                "first step",
                help=f"Detach it before it goes in: `{store.target}.detach()`",
                edits=_fix(program, store, argument),
                safe=False,
            )


def _call_with_itself(program: Program, store: Store) -> cst.Call | None:
    """The call of a model in `hidden = model(x, hidden)`."""
    if store.how != "assign" or not store.uses_itself or not isinstance(store.expression, cst.Call):
        return None
    call = store.expression
    name = dotted(call.func) or ""
    if program.value(call).kind is not Kind.GRAPH and not store.value.carries_graph:
        return None
    if names_a_loss(name) or (program.imports.qualified(call.func) or "").startswith("torch."):
        return None
    return call if _state_argument(call, store.target) is not None else None


def _state_argument(call: cst.Call, target: str) -> cst.BaseExpression | None:
    for argument in call.args:
        if dotted(argument.value) == target:
            return argument.value
        if isinstance(argument.value, (cst.Tuple, cst.List)):
            for each in argument.value.elements:
                if dotted(each.value) == target:
                    return each.value
    return None


def _is_kept_by_module(program: Program, store: Store) -> bool:
    """`self.hidden` in a model's forward, that no one resets or detaches."""
    return (
        owner_is_self(store.target)
        and repeats(program, store.function)
        and not is_let_go_elsewhere(program, store)
    )


def _fix(program: Program, store: Store, argument: cst.BaseExpression | None) -> tuple[Edit, ...]:
    if argument is None:
        return ()
    if _is_tuple(program, store):
        return (replace(program, argument, f"tuple(part.detach() for part in {store.target})"),)
    return tuple(append_to(program, argument, ".detach()"))


def _is_tuple(program: Program, store: Store) -> bool:
    """Whether the state is a tuple, as an LSTM's is."""
    model = store.expression.func if isinstance(store.expression, cst.Call) else None
    for each in program.stores:
        if each.target == store.target and isinstance(each.expression, cst.Tuple):
            return True
        if (
            model is not None
            and last_name(each.target) == last_name(dotted(model) or "")
            and each.how == "assign"
        ):
            made_of = " ".join(names_in(each.expression))
            if "LSTM" in made_of:
                return True
    for node in walk(program.module):
        if isinstance(node, cst.Subscript) and dotted(node.value) == store.target:
            return True
    return False
