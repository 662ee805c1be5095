"""`legroom.free`: what it drops, what it gives back, and whom it names."""

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
from legroom.observe.virtual.gpu import VirtualGPU
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
    """Runs a script's text as a module of the user's."""
    module = types.ModuleType("train")
    vars(module).update(torch=torch, legroom=legroom, memory=memory, **names)
    names.clear()
    exec(compile(source, "/project/train.py", "exec"), vars(module))
    return vars(module)


def test_memory_that_nothing_needs_goes_back_to_the_device():
    tensor = memory(40 * MiB)
    del tensor
    freed = legroom.free()
    assert freed.freed_bytes == 0  # it was the cache that held it
    assert freed.returned_bytes == 40 * MiB
    assert (freed.allocated_after, freed.reserved_after) == (0, 0)


def test_the_cache_is_kept_when_asked():
    tensor = memory()
    del tensor
    assert legroom.free(cache=False).returned_bytes == 0


def test_what_only_a_cycle_holds_is_freed():
    cycle: list[Any] = [memory()]
    cycle.append(cycle)
    gc.disable()
    try:
        del cycle
        assert legroom.free().freed_bytes == 4 * MiB
    finally:
        gc.enable()


def test_the_last_error_s_frames_are_freed_even_if_a_variable_keeps_the_error():
    def fail() -> None:
        activation = memory()
        raise ValueError(activation.shape)

    try:
        fail()
    except ValueError as error:
        sys.last_value, sys.last_type, sys.last_traceback = error, ValueError, error.__traceback__
    freed = legroom.free()
    assert freed.freed_bytes == 4 * MiB
    assert freed.cleared == ("the last error's traceback",)
    assert not hasattr(sys, "last_value")


def test_inside_except_it_says_to_come_later():
    try:
        raise ValueError
    except ValueError:
        freed = legroom.free()
    assert freed.hint == (
        "An error is being handled (ValueError) and keeps its frames: call free() after the `except` block."
    )


def test_names_are_deleted_first():
    module = script("model = memory(); optimizer = memory(); freed = legroom.free('model', 'optimizer')")
    assert "model" not in module
    assert module["freed"].freed_bytes == 8 * MiB
    assert module["freed"].cleared == ("model", "optimizer")


def test_a_name_that_is_not_there_is_refused_and_nothing_is_deleted():
    with pytest.raises(UsageError, match="there is no variable 'modle' to delete"):
        script("model = memory()\nlegroom.free('model', 'modle')")
    module = script("model = 1\ntry:\n    legroom.free('model', 'modle')\nexcept ValueError:\n    pass")
    assert module["model"] == 1


def test_a_local_variable_is_refused_with_what_to_write():
    local = memory()
    with pytest.raises(UsageError, match="write `del local` before legroom.free()"):
        legroom.free("local")
    del local


def test_an_object_instead_of_its_name_is_refused():
    with pytest.raises(UsageError, match="needs the name in quotes, not the Tensor itself"):
        legroom.free(memory())


def test_what_still_holds_memory_is_named():
    freed = script(
        "model = torch.nn.Linear(1024, 1024, bias=False).cuda()\nhistory = [memory(8 << 20)]\nfreed = legroom.free()"
    )["freed"]
    assert [(holder.path, holder.bytes) for holder in freed.holders] == [
        ("history (list, 1 item)", 8 * MiB),
        ("model (Linear)", 4 * MiB),
    ]


def test_it_reads_well():
    source = "def train():\n    batch = memory(24 << 20)\n    return legroom.free()\nhistory = [memory(8 << 20)]\nfreed = train()"
    assert repr(script(source)["freed"]).splitlines() == [
        "Freed 0 B of tensors, gave 0 B back to the device; 32.0 MiB of tensors are left, 44.0 MiB reserved.",
        "Still holding memory:",
        "   24.0 MiB  batch (Tensor) in train()",
        "    8.0 MiB  history (list, 1 item)",
    ]


def test_memory_that_no_variable_reaches_is_said_to_be_held_elsewhere(monkeypatch):
    hidden = memory()
    monkeypatch.setattr("legroom.train.free.find_holders", lambda *_: [])
    assert "No variable of yours reaches what is left" in repr(legroom.free())
    del hidden


def test_it_keeps_nothing_alive():
    reference = weakref.ref(script("kept = memory(); freed = legroom.free()")["kept"])
    gc.collect()
    assert reference() is None


def test_without_a_gpu_there_is_nothing_to_say(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert repr(legroom.free()).startswith(
        "Freed 0 B of tensors, gave 0 B back to the device; 0 B of tensors"
    )


def test_release_empties_the_cache():
    tensor = memory()
    del tensor
    release()
    assert torch.cuda.memory_reserved() == 0


# --- notebooks


class Shell:
    """As much of IPython's shell as is asked."""

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


def test_outputs_of_a_notebook_stay_unless_asked(shell):
    assert legroom.free().freed_bytes == 0
    assert shell.user_ns["Out"]


def test_outputs_of_a_notebook_are_forgotten_when_asked(shell):
    freed = legroom.free(outputs=True)
    assert freed.freed_bytes == 4 * MiB
    assert freed.cleared == ("1 output of the notebook",)
    assert shell.user_ns == {"Out": {}, "_mine": 1}


def test_outputs_that_hold_memory_are_pointed_at(shell):
    freed = script("freed = legroom.free()", Out=shell.user_ns["Out"])["freed"]
    assert freed.hint == "Results of earlier cells hold some of it: legroom.free(outputs=True) forgets them."


def test_a_notebook_s_own_traceback_is_forgotten(shell):
    def fail() -> None:
        activation = memory()
        raise ValueError(activation.shape)

    try:
        fail()
    except ValueError as error:
        shell.InteractiveTB.tb = error.__traceback__
    assert legroom.free().freed_bytes == 4 * MiB
    assert shell.InteractiveTB.tb is None
