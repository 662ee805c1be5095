"""Every way in which Python keeps a tensor alive is reported with a name."""

import contextvars
import functools
import gc
import sys
from collections import deque
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from legroom.observe.holders.descriptions import HolderPath
from legroom.observe.holders.paths import find_path
from legroom.observe.holders.variables import Variables
from legroom.observe.leaks.search.storing_trace import StoringTrace

GLOBAL: list[Any] = []


class Owner:
    shared: list[Any] = []  # noqa: RUF012  (this is what is tested)

    def __init__(self) -> None:
        self.history: list[Any] = []
        self.last: Any = None


class Slotted:
    __slots__ = ("kept",)

    def __init__(self, kept: Any) -> None:
        self.kept = kept


def path_to(find: Any, *, min_length: int = 0) -> HolderPath:
    """Return the path to the object that `find()` returns. No variable of this function references the object."""
    return find_path(find(), Variables(sys._getframe(1)), min_length=min_length)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    GLOBAL.clear()
    Owner.shared.clear()


def test_a_local_list_is_reported_by_its_variable() -> None:
    losses = [torch.ones(1) for _ in range(5)]
    path = path_to(lambda: losses[2])
    assert (path.name, path.how, path.described) == ("losses", "container", "list, 5 items")


def test_an_object_of_legroom_is_not_a_holder() -> None:
    trace = StoringTrace(0)
    trace._container = [torch.ones(1)]
    assert path_to(lambda: trace._container[0]).how == "unknown"


@pytest.mark.usefixtures("imported_objects")
def test_a_global_list_is_reported_by_its_variable() -> None:
    GLOBAL.extend(torch.ones(1) for _ in range(3))
    path = path_to(lambda: GLOBAL[1])
    assert (path.name, path.how, path.file) == ("GLOBAL", "container", __file__)


def test_an_attribute_is_reported_by_its_path() -> None:
    owner = Owner()
    owner.history.extend(torch.ones(1) for _ in range(4))
    path = path_to(lambda: owner.history[0])
    assert (path.name, path.stored_as, path.is_attribute) == ("owner.history", "history", True)


def test_a_slot_is_reported_as_an_attribute() -> None:
    slotted = Slotted(torch.ones(1))
    assert path_to(lambda: slotted.kept).name == "slotted.kept"


@pytest.mark.usefixtures("imported_objects")
def test_a_class_attribute_is_reported_by_its_class() -> None:
    Owner.shared.extend(torch.ones(1) for _ in range(4))
    assert path_to(lambda: Owner.shared[3]).name == "Owner.shared"


def test_a_closure_is_reported_by_its_variable() -> None:
    def make() -> Any:
        hidden = [torch.ones(1) for _ in range(3)]
        return lambda: hidden[0]

    function = make()
    path = path_to(function)
    assert (path.name, path.how) == ("hidden", "closure")


def test_a_module_hook_is_reported() -> None:
    def hooked() -> torch.nn.Module:
        outputs: list[Any] = []
        module = torch.nn.Linear(2, 2)
        module.register_forward_hook(lambda m, i, output: outputs.append(output))
        return module

    module = hooked()
    module(torch.ones(1, 2))
    (hook,) = module._forward_hooks.values()
    path = path_to(lambda: hook.__closure__[0].cell_contents[0])
    assert path.name == "outputs"


def test_an_unbounded_cache_is_reported() -> None:
    @functools.cache
    def table(n: int) -> torch.Tensor:
        return torch.ones(n)

    table(3)
    path = path_to(lambda: table(3))
    assert (path.how, path.name, path.bounded) == ("cache", "table", False)


def test_a_bounded_cache_is_marked() -> None:
    @functools.lru_cache(maxsize=4)
    def table(n: int) -> torch.Tensor:
        return torch.ones(n)

    table(3)
    assert path_to(lambda: table(3)).bounded


def test_a_stored_exception_is_reported() -> None:
    def fails() -> None:
        local = torch.ones(1)
        raise ValueError(local.shape)

    errors = []
    for _ in range(3):
        try:
            fails()
        except ValueError as error:
            errors.append(error)

    def in_frame() -> Any:
        traceback = errors[0].__traceback__
        assert traceback is not None
        assert traceback.tb_next is not None
        return traceback.tb_next.tb_frame.f_locals["local"]

    path = path_to(in_frame, min_length=3)
    assert (path.how, path.name) == ("exception", "errors")


@pytest.mark.slow
@pytest.mark.usefixtures("imported_objects")
def test_the_last_traceback_of_an_interactive_session_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        local = torch.ones(1)
        raise ValueError(local.shape)

    try:
        fails()
    except ValueError as error:
        monkeypatch.setattr(sys, "last_value", error, raising=False)

    def in_frame() -> Any:
        return sys.last_value.__traceback__.tb_next.tb_frame.f_locals["local"]

    path = path_to(in_frame)
    assert (path.how, path.name) == ("exception", "sys.last_value")


def test_notebook_outputs_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = ModuleType("notebook_main")
    notebook.__dict__["Out"] = {n: torch.ones(1) for n in range(4)}
    monkeypatch.setitem(sys.modules, "notebook_main", notebook)
    path = path_to(lambda: notebook.__dict__["Out"][2])
    assert (path.name, path.described) == ("Out", "dict, 4 items")


def test_a_variable_of_a_generator_is_reported() -> None:
    def batches() -> Iterator[int]:
        seen = [torch.ones(1) for _ in range(4)]
        yield len(seen)

    generator: Any = batches()
    next(generator)
    path = path_to(lambda: generator.gi_frame.f_locals["seen"][1])
    assert (path.how, path.name) == ("generator", "seen")
    generator.close()


def test_a_reference_cycle_without_a_name_is_reported() -> None:
    gc.collect()
    gc.disable()
    try:

        class Ring:
            def __init__(self) -> None:
                self.tensor = torch.ones(1)
                self.me = self

        Ring()

        def of_ring() -> Any:
            return next(o for o in gc.get_objects() if type(o) is Ring).tensor

        path = path_to(of_ring)
        assert (path.how, path.name, path.stored_as) == ("cycle", "Ring.tensor", "me")
    finally:
        gc.enable()


def test_a_bounded_queue_is_marked() -> None:
    recent = deque((torch.ones(1) for _ in range(5)), maxlen=5)
    assert path_to(lambda: recent[2]).bounded


def test_the_longer_of_two_containers_is_reported() -> None:
    memory = [torch.ones(1) for _ in range(40)]
    sample = memory[:3]
    path = path_to(lambda: memory[1], min_length=20)
    assert path.name == "memory"
    assert len(sample) == 3


def test_a_search_calls_no_repr_comparison_or_property() -> None:
    class Raises:
        def __init__(self) -> None:
            self.kept = [torch.ones(1) for _ in range(3)]

        def __repr__(self) -> str:
            raise AssertionError("repr")

        def __eq__(self, other: object) -> bool:
            raise AssertionError("compared")

        __hash__ = None  # type: ignore[assignment]

        @property
        def trap(self) -> None:
            raise AssertionError("property ran")

    raises = Raises()
    assert path_to(lambda: raises.kept[0]).name == "raises.kept"


def test_a_search_keeps_nothing_alive() -> None:
    import weakref

    losses = [torch.ones(1) for _ in range(5)]
    gc.disable()
    try:
        path_to(lambda: losses[0])
        reference = weakref.ref(losses[0])
        losses.clear()
        assert reference() is None
    finally:
        gc.enable()


def test_closures_are_reported_by_the_list_that_contains_them() -> None:
    def later(value: torch.Tensor) -> Any:
        return lambda: value.sum()

    reports = [later(torch.ones(1)) for _ in range(5)]
    path = path_to(lambda: reports[2].__closure__[0].cell_contents, min_length=4)
    assert (path.name, path.described) == ("reports", "list, 5 items")


def test_a_default_argument_is_reported_by_its_name() -> None:
    def remember(value: Any, seen: list[Any] = []) -> None:  # noqa: B006  (this is what is tested)
        seen.append(value)

    for _ in range(4):
        remember(torch.ones(1))
    path = path_to(lambda: remember.__defaults__[0][1], min_length=4)  # type: ignore[index]
    assert (path.name, path.function) == ("seen", "remember")


def test_a_list_inside_lists_is_reported_with_its_indices() -> None:
    memory = [[], [("episode", [torch.ones(1) for _ in range(5)])]]
    path = path_to(lambda: memory[1][0][1][3], min_length=4)
    assert (path.name, path.stored_as, path.described) == ("memory[1][0][1]", "memory", "list, 5 items")


def test_a_list_of_tuples_is_reported_and_not_one_of_its_tuples() -> None:
    memory = [(torch.ones(1), torch.ones(1)) for _ in range(40)]
    path = path_to(lambda: memory[7][1], min_length=4)
    assert (path.name, path.described) == ("memory", "list, 40 items")


def test_a_parameter_list_is_reported_as_an_attribute() -> None:
    model = torch.nn.Module()
    model.prompts = torch.nn.ParameterList(torch.ones(1) for _ in range(5))
    path = path_to(lambda: model.prompts[3], min_length=4)
    assert (path.name, path.stored_as) == ("model.prompts", "prompts")


def test_a_context_variable_is_reported() -> None:
    variable: contextvars.ContextVar[list[Any]] = contextvars.ContextVar("history")
    token = variable.set([torch.ones(1) for _ in range(4)])
    assert path_to(lambda: variable.get()[1]).name == "history"
    variable.reset(token)


def test_a_list_under_construction_is_reported_by_its_future_name() -> None:
    path = path_while_building()
    assert (path.name, path.described) == ("losses", "list, 4 items")


def numbered(number: int) -> Any:
    return next(o for o in gc.get_objects() if type(o) is torch.Tensor and vars(o).get("number") == number)


def path_while_building() -> HolderPath:
    found: list[HolderPath] = []

    def step(i: int) -> torch.Tensor:
        tensor = torch.full((1,), float(i))
        tensor.number = i  # type: ignore[attr-defined]
        if i == 4:
            found.append(find_path(numbered(3), Variables(sys._getframe()), min_length=4))
        return tensor

    losses = [step(i) for i in range(5)]
    del losses
    return found[0]


class _Session:
    def __init__(self) -> None:
        self.states = [torch.zeros(2) for _ in range(6)]


def test_lists_of_a_few_objects_are_the_growing_containers_even_if_only_their_newest_tensors_are_known() -> (
    None
):
    sessions = {user: _Session() for user in range(3)}
    created_in = {id(session.states[-1]): iteration for iteration, session in enumerate(sessions.values())}
    created_in[id(sessions[0].states[-2])] = 3
    path = find_path(sessions[0].states[-1], Variables(sys._getframe()), created_in=created_in)
    assert (path.name, path.described) == ("sessions.states", "list, 6 items")


def test_the_nested_container_with_tensors_of_many_iterations_is_reported() -> None:
    curves = {"loss": [torch.ones(1) for _ in range(4)], **{str(n): [] for n in range(9)}}
    created_in = {id(each): iteration for iteration, each in enumerate(curves["loss"])}
    path = find_path(curves["loss"][2], Variables(sys._getframe()), created_in=created_in)
    assert (path.name, path.iterations) == ('curves["loss"]', 4)


def test_a_list_of_dicts_is_reported_instead_of_one_dict() -> None:
    records = [{str(n): torch.ones(1) for n in range(9)} for _ in range(4)]
    created_in = {id(each): i for i, record in enumerate(records) for each in record.values()}
    path = find_path(records[1]["3"], Variables(sys._getframe()), created_in=created_in)
    assert (path.name, path.described) == ("records", "list, 4 items")


def test_accumulating_attributes_are_reported_by_their_object() -> None:
    owner = Owner()
    for n in range(6):
        setattr(owner, f"loss_{n}", torch.ones(1))
    created_in = {
        id(value): n for n, value in enumerate(vars(owner).values()) if isinstance(value, torch.Tensor)
    }
    path = find_path(owner.loss_3, Variables(sys._getframe()), created_in=created_in)  # type: ignore[attr-defined]
    assert (path.name, path.iterations) == ("owner", 6)


def test_an_argument_has_the_name_of_the_caller_as_alias() -> None:
    def inner(argument: list[Any]) -> HolderPath:
        return find_path(argument[0], Variables(sys._getframe()))

    owned = [torch.ones(1)]
    path = inner(owned)
    assert path.name == "argument"
    assert "owned" in [each.name for each in path.aliases]


def test_only_a_cache_keyed_by_values_may_be_filling() -> None:
    @functools.cache
    def table(n: int) -> torch.Tensor:
        return torch.ones(n)

    @functools.cache
    def doubled(tensor: torch.Tensor) -> torch.Tensor:
        return tensor * 2

    argument = torch.ones(1)
    table(3), doubled(argument)
    assert path_to(lambda: table(3)).is_mapping
    assert not path_to(lambda: doubled(argument)).is_mapping
