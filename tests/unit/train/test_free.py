"""`legroom.free`: deleted variables, freed memory, and the report."""

import gc
import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import legroom
from legroom.errors import UsageError
from legroom.memory.events import Holder
from legroom.observe.virtual.gpu import VirtualGPU
from legroom.train import free as free_module
from legroom.train.free import release
from legroom.units import MiB


@pytest.fixture(autouse=True)
def gpu() -> Iterator[VirtualGPU]:
    with VirtualGPU("512MiB") as active:
        yield active


@pytest.fixture(autouse=True)
def no_last_error(monkeypatch) -> None:
    for name in ("last_exc", "last_value", "last_traceback", "last_type"):
        monkeypatch.delattr(sys, name, raising=False)


def memory(size: int = 4 * MiB) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8, device="cuda")


def script(source: str, **names: Any) -> dict[str, Any]:
    """Run source code as a user module."""
    module = types.ModuleType("train")
    vars(module).update(torch=torch, legroom=legroom, memory=memory, **names)
    names.clear()
    exec(compile(source, "/project/train.py", "exec"), vars(module))
    return vars(module)


@pytest.mark.slow
def test_cached_memory_is_released_to_the_device():
    tensor = memory(40 * MiB)
    del tensor
    freed = legroom.free()
    assert freed.freed_bytes == 0  # only the cache is freed
    assert freed.returned_bytes == 40 * MiB
    assert (freed.allocated_after, freed.reserved_after) == (0, 0)


def test_cache_false_keeps_the_cache():
    tensor = memory()
    del tensor
    assert legroom.free(cache=False).returned_bytes == 0


def test_reference_cycles_are_freed():
    cycle: list[Any] = [memory()]
    cycle.append(cycle)
    gc.disable()
    try:
        del cycle
        assert legroom.free().freed_bytes == 4 * MiB
    finally:
        gc.enable()


def test_frames_of_the_last_error_are_freed_even_if_a_variable_references_it():
    def fail() -> None:
        activation = memory()
        raise ValueError(activation.shape)

    try:
        fail()
    except ValueError as error:
        sys.last_value, sys.last_type, sys.last_traceback = error, ValueError, error.__traceback__
    freed = legroom.free()
    assert freed.freed_bytes == 4 * MiB
    assert freed.cleared == ("the traceback of the last error",)
    assert not hasattr(sys, "last_value")


def test_inside_an_except_block_the_hint_suggests_calling_free_later():
    try:
        raise ValueError
    except ValueError:
        freed = legroom.free()
    assert freed.hint == (
        "The error being handled (ValueError) keeps its frames alive. Call free() after the `except` block."
    )


def test_named_variables_are_deleted():
    module = script("model = memory(); optimizer = memory(); freed = legroom.free('model', 'optimizer')")
    assert "model" not in module
    assert module["freed"].freed_bytes == 8 * MiB
    assert module["freed"].cleared == ("model", "optimizer")


def test_an_unknown_name_is_rejected_and_nothing_is_deleted():
    with pytest.raises(UsageError, match="There is no variable 'modle'"):
        script("model = memory()\nlegroom.free('model', 'modle')")
    module = script("model = 1\ntry:\n    legroom.free('model', 'modle')\nexcept ValueError:\n    pass")
    assert module["model"] == 1


def test_a_local_variable_is_rejected_with_advice():
    local = memory()
    with pytest.raises(UsageError, match="Run `del local` before legroom.free()"):
        legroom.free("local")
    del local


def test_an_object_instead_of_its_name_is_rejected():
    with pytest.raises(UsageError, match="Pass the name as a string, not the Tensor itself"):
        legroom.free(memory())


def test_variables_that_retain_memory_are_listed():
    freed = script(
        "model = torch.nn.Linear(1024, 1024, bias=False).cuda()\nhistory = [memory(8 << 20)]\nfreed = legroom.free()"
    )["freed"]
    assert [(holder.path, holder.bytes) for holder in freed.holders] == [
        ("history (list, 1 item)", 8 * MiB),
        ("model (Linear)", 4 * MiB),
    ]


def test_a_guard_that_retains_the_model_is_named():
    freed = script(
        "model = torch.nn.Linear(1024, 1024, bias=False).cuda()\n"
        "guard = legroom.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1))\n"
        "freed = legroom.free('model')"
    )["freed"]
    assert [(holder.path, holder.bytes) for holder in freed.holders] == [("guard (Guard)", 4 * MiB)]


MODEL = "model = torch.nn.Linear(1024, 1024, bias=False).cuda()\n"


def holders_after(source: str) -> list[tuple[str, int]]:
    freed = script(f"{MODEL}{source}\nfreed = legroom.free('model')")["freed"]
    return [(holder.path, holder.bytes // MiB) for holder in freed.holders]


@pytest.mark.parametrize(
    ("source", "holders"),
    [
        ("watch = legroom.watch([model], quiet=True)", [("watch (Watched)", 4)]),
        ("trainer = types.SimpleNamespace(w=legroom.watch([model]))", [("trainer (SimpleNamespace)", 4)]),
        ("rec = legroom.record(); rec.model = model", [("rec (BlockRecording)", 4)]),
        ("rec = legroom.record()\nwith rec: pass", []),
        ("gpu = legroom.VirtualGPU.active()", []),
    ],
)
def test_a_legroom_object_is_named_if_it_retains_memory(source, holders):
    assert holders_after(f"import types\n{source}") == holders


def test_an_optimizer_that_retains_the_parameters_is_named():
    assert holders_after("optimizer = torch.optim.SGD(model.parameters(), lr=0.1)") == [
        ("optimizer (SGD)", 4)
    ]


def test_a_suspended_generator_that_retains_the_model_is_named():
    source = """
class Loader:
    def __init__(self, model):
        self.model = model
    def batches(self):
        yield 1
        yield 2
batches = Loader(model).batches()
next(batches)"""
    assert holders_after(source) == [("batches (generator)", 4)]


def test_a_hook_that_retains_another_model_is_named():
    source = (
        "small = torch.nn.Linear(1, 1)\nhook = small.register_forward_hook(lambda *_, m=model: m)\ndel hook"
    )
    assert holders_after(source) == [("small (Linear)", 4)]


def test_a_caught_error_whose_frames_retain_memory_is_named():
    source = """
def fail():
    activation = memory()
    raise ValueError
try:
    fail()
except ValueError as error:
    failure = error
del model
model = None"""
    assert holders_after(source) == [("failure (ValueError)", 4)]


@pytest.mark.parametrize("backward", ["", "; loss.backward()"])
def test_a_loss_retains_the_parameters_that_its_graph_references(backward):
    loss = f"loss = model(torch.zeros(1, 1024, device='cuda')).sum(){backward}"
    (path, size), *others = holders_after(loss)
    assert (path, others) == ("loss (Tensor)", [])
    assert size == (8 if backward else 4)  # with the gradients


@pytest.mark.parametrize("has_file", [True, False])
def test_variables_of_other_user_modules_are_named_with_their_module(monkeypatch, has_file):
    state = types.ModuleType("state")
    if has_file:
        state.__file__ = "/project/state.py"
    monkeypatch.setitem(sys.modules, "state", state)
    guard = "state.guard = legroom.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1))"
    assert holders_after(f"import state\n{guard}\ndel state") == [("state.guard (Guard)", 4)]
    del state.guard
    assert holders_after("") == []


def test_variables_of_running_threads_are_named():
    source = """
import threading
started, done = threading.Event(), threading.Event()
def work():
    batch = memory()
    started.set()
    done.wait()
thread = threading.Thread(target=work)
thread.start()
started.wait()"""
    module = script(f"{source}\nfreed = legroom.free()\ndone.set()\nthread.join()")
    assert [holder.path for holder in module["freed"].holders] == ["batch (Tensor)"]


def test_global_variables_are_listed_if_a_function_of_the_module_calls_another():
    source = "kept = memory()\ndef inner():\n    return legroom.free()\ndef outer():\n    return inner()"
    outer = script(source)["outer"]
    assert [holder.path for holder in outer().holders] == ["kept (Tensor)"]


@pytest.mark.parametrize(
    ("loop", "kind"),
    [("legroom.watch(batches(), quiet=True)", "_WatchedIterator"), ("batches()", "generator")],
)
def test_the_iterator_of_a_running_loop_is_named(loop, kind):
    source = f"""
def batches():
    kept = [memory(8 << 20), memory()]
    yield from kept
for batch in {loop}:
    freed = legroom.free()
    break"""
    freed = script(source)["freed"]
    assert [(holder.path, holder.bytes // MiB) for holder in freed.holders] == [
        ("batch (Tensor)", 8),
        (f"an iterator without a name ({kind})", 4),
    ]
    assert (
        freed.hint
        == "An iterator without a name usually belongs to a running `for` loop. Call free() after the loop."
    )


def test_memory_without_a_known_holder_is_reported_next_to_the_holders(monkeypatch):
    tensor = memory()
    hidden = memory(8 * MiB)
    holder = Holder("tensor (Tensor)", tensor.nbytes, 1, None)
    monkeypatch.setattr(free_module, "find_holders", lambda *_: ([holder], holder.bytes))
    assert (
        legroom.free().hint
        == "Legroom found no variable that retains the other 8.0 MiB. A library or a C++ object may retain it."
    )
    del tensor, hidden


def test_repr_is_a_readable_report():
    source = "def train():\n    batch = memory(24 << 20)\n    return legroom.free()\nhistory = [memory(8 << 20)]\nfreed = train()"
    assert repr(script(source)["freed"]).splitlines() == [
        "Freed 0 B of tensors and released 0 B to the device. Remaining: 32.0 MiB of tensors, 44.0 MiB reserved.",
        "Retained by:",
        "   24.0 MiB  batch (Tensor) in train()",
        "    8.0 MiB  history (list, 1 item)",
    ]


def test_memory_that_no_variable_retains_is_reported(monkeypatch):
    hidden = memory()
    monkeypatch.setattr("legroom.train.free.find_holders", lambda *_: ([], 0))
    assert "found no variable that retains the remaining memory" in repr(legroom.free())
    del hidden


def test_the_result_retains_no_tensor():
    reference = weakref.ref(script("tensor = memory(); freed = legroom.free()")["tensor"])
    gc.collect()
    assert reference() is None


def test_without_a_gpu_nothing_is_freed(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert repr(legroom.free()).startswith(
        "Freed 0 B of tensors and released 0 B to the device. Remaining: 0 B of tensors"
    )


def test_release_empties_the_cache():
    tensor = memory()
    del tensor
    release()
    assert torch.cuda.memory_reserved() == 0


# --- notebooks


class Shell:
    """The attributes of IPython's shell that `free` uses."""

    def __init__(self) -> None:
        outputs = {4: memory()}
        self.user_ns: dict[str, Any] = {"Out": outputs, "_": outputs[4], "_4": outputs[4], "_mine": 1}
        self.user_ns_hidden: dict[str, Any] = {"___": outputs[4]}
        self.displayhook = types.SimpleNamespace(flush=outputs.clear)
        self.InteractiveTB = types.SimpleNamespace(tb=None, etype=None)


@pytest.fixture
def shell(gpu, monkeypatch) -> Shell:
    shell = Shell()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    return shell


def test_notebook_outputs_are_kept_by_default(shell):
    assert legroom.free().freed_bytes == 0
    assert shell.user_ns["Out"]


def test_outputs_true_deletes_notebook_outputs(shell):
    freed = legroom.free(outputs=True)
    assert freed.freed_bytes == 4 * MiB
    assert freed.cleared == ("1 notebook output",)
    assert shell.user_ns == {"Out": {}, "_mine": 1}


def test_the_hint_mentions_notebook_outputs(shell):
    freed = script("freed = legroom.free()", Out=shell.user_ns["Out"])["freed"]
    assert (
        freed.hint
        == "Results of earlier cells retain some of this memory. To delete these results, call legroom.free(outputs=True)."
    )


def test_the_traceback_of_a_notebook_is_deleted(shell):
    def fail() -> None:
        activation = memory()
        raise ValueError(activation.shape)

    try:
        fail()
    except ValueError as error:
        shell.InteractiveTB.tb = error.__traceback__
    assert legroom.free().freed_bytes == 4 * MiB
    assert shell.InteractiveTB.tb is None
