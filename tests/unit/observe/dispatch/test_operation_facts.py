"""Each operation runs through the fastest function that dispatches to exactly that operation."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from legroom.observe.dispatch.operation_facts import _FUNCTIONS, facts_of


def calls() -> list[tuple[Any, ...]]:
    a, b, c = torch.rand(3, 4), torch.rand(3, 4), torch.rand(4, 5)
    batch, other = torch.rand(2, 3, 4), torch.rand(2, 4, 5)
    image, kernel = torch.rand(1, 2, 5, 5), torch.rand(3, 2, 3, 3)
    half = {"dtype": torch.float16, "device": torch.device("cpu"), "pin_memory": False}
    return [
        ("t.default", a), ("mm.default", a, c), ("bmm.default", batch, other), ("addmm.default", torch.rand(5), a, c),
        ("baddbmm.default", torch.rand(2, 3, 5), batch, other), ("add.Tensor", a, b), ("add.Tensor", a, 1),
        ("sub.Tensor", a, b), ("mul.Tensor", a, 2.0), ("mul.Tensor", a, b), ("div.Tensor", a, b), ("div.Tensor", a, 2),
        *((f"{name}.default", a) for name in ("neg", "relu", "tanh", "sigmoid", "exp", "log", "sqrt", "rsqrt")),
        ("sum.default", a), ("sum.dim_IntList", a, [0], True), ("mean.default", a), ("mean.dim", a, [1]),
        ("sum.dim_IntList", a, None), ("transpose.int", a, 0, 1), ("permute.default", a, [1, 0]),
        ("unsqueeze.default", a, 0), ("select.int", a, 0, 1), ("cat.default", [a, b], 1), ("cat.default", [a, b]),
        ("clone.default", a), ("detach.default", a), ("ones_like.default", a), ("zeros_like.default", a),
        ("empty_like.default", a), ("zeros.default", [2, 3]), ("ones.default", []), ("empty.memory_format", [4]),
        ("full.default", [2], 7), ("rand.default", [2]), ("randn.default", [2, 2]),
        ("embedding.default", a, torch.tensor([0, 2])), ("embedding.default", a, torch.tensor([0]), 1),
        ("native_layer_norm.default", a, [4], None, None, 1e-5),
        ("native_layer_norm.default", a, [4], torch.rand(4), torch.rand(4), 1e-5),
        ("convolution.default", image, kernel, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        ("_softmax.default", a, 1, False), ("_log_softmax.default", a, 1, False),
        ("view.default", a, [4, 3]), ("expand.default", torch.rand(1, 4), [3, 4]),
        ("add_.Tensor", a.clone(), b, {"alpha": 2}), ("sub_.Tensor", a.clone(), 1), ("mul_.Tensor", a.clone(), b),
        ("div_.Tensor", a.clone(), 2), ("copy_.default", a.clone(), b), ("copy_.default", a.clone(), b, True),
        ("zero_.default", a.clone()), ("gelu.default", a),
        ("gelu.default", a, {"approximate": "tanh"}), ("zeros.default", [2], half), ("empty.memory_format", [2], half),
        ("zeros_like.default", a, half), ("ones_like.default", a, {"memory_format": torch.preserve_format}),
        ("sum.default", a, {"dtype": torch.float64}), ("add.Tensor", a, b, {"alpha": 2}),
    ]  # fmt: skip


class Dispatched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.funcs: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.funcs.append(func)
        return func(*args, **(kwargs or {}))


def operation(name: str) -> Any:
    packet, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, packet), overload)


@pytest.mark.parametrize("call", calls(), ids=lambda call: f"{call[0]}-{len(call)}")
def test_the_function_of_an_operation_dispatches_to_it_alone_with_the_same_result(call):
    func, args = operation(call[0]), list(call[1:])
    kwargs = args.pop() if isinstance(args[-1], dict) else {}
    fast = facts_of(func).call
    assert fast is _FUNCTIONS[func]
    again = [value.clone() if isinstance(value, torch.Tensor) else value for value in args]
    with Dispatched() as mode:
        torch.manual_seed(0)
        result = fast(*args, **kwargs)
    assert set(mode.funcs) == {func}  # torch 2.6 and 2.8 dispatch `detach` twice
    torch.manual_seed(0)
    expected = func(*again, **kwargs)
    if "empty" not in call[0]:
        assert torch.utils._pytree.tree_all_only(
            torch.Tensor, lambda same: bool(same), torch.utils._pytree.tree_map(_equal, result, expected)
        )


def _equal(one: Any, other: Any) -> Any:
    return torch.tensor(one.dtype == other.dtype and torch.equal(one, other))


def test_every_listed_function_is_called_above():
    assert {operation(call[0]) for call in calls()} == set(_FUNCTIONS)


def test_the_generic_function_is_used_for_other_operations():
    func = torch.ops.aten.cumsum.default
    assert facts_of(func).call is func._op
