"""The torch functions behind the CUDA history, as far as they work without a GPU."""

import subprocess
import sys

import pytest
import torch

from legroom.observe.cuda import stacks
from legroom.observe.cuda.history import parse_settings
from legroom.observe.cuda.markers import FORWARD, OPTIMIZER, OTHER, Markers
from legroom.observe.cuda.torch_api import CudaApi, workspace_sizes
from legroom.units import MiB


def test_cuda_is_not_initialized_early(monkeypatch: pytest.MonkeyPatch) -> None:
    queued = []
    monkeypatch.setattr(torch.cuda, "_lazy_call", queued.append)
    called = []
    CudaApi().when_ready(lambda: called.append(True))
    assert (len(queued), called) == (1, [])


@pytest.mark.slow
def test_a_snapshot_does_not_import_the_compiler() -> None:
    """The program calls the function that torch uses to name frames. The second call shows that this function imports
    the compiler unless the import is prevented."""
    code = """
import sys, torch
from torch._C._profiler import gather_traceback, symbolize_tracebacks
from legroom.observe.cuda.torch_api import _without_compiler_import
with _without_compiler_import():
    symbolize_tracebacks([gather_traceback(True, True, False)])
print("torch._inductor" in sys.modules, "_inductor" in vars(torch))
symbolize_tracebacks([gather_traceback(True, True, False)])
print("torch._inductor" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "True"]


@pytest.mark.parametrize(
    ("capability", "environ", "sizes"),
    [
        ((9, 0), {}, {32 * MiB, MiB}),
        ((8, 0), {}, {8320 * 1024, MiB}),
        ((9, 0), {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, {32 * MiB, MiB}),
        ((9, 0), {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}, {128 * 1024, MiB}),
        ((9, 0), {"CUBLAS_WORKSPACE_CONFIG": ":4096:2:16:8"}, {8320 * 1024, MiB}),
        (
            (9, 0),
            {"CUBLAS_WORKSPACE_CONFIG": "nonsense", "CUBLASLT_WORKSPACE_SIZE": "64"},
            {32 * MiB, 64 * 1024},
        ),
    ],
)
def test_workspace_sizes_are_those_of_torch(
    capability: tuple[int, int], environ: dict[str, str], sizes: set[int]
) -> None:
    assert workspace_sizes(capability, environ) == sizes


def test_settings_of_a_snapshot_are_parsed() -> None:
    divisions = {str(1 << power): 4 for power in range(16)}
    settings = parse_settings(
        {"max_split_size": 64 * MiB, "roundup_power2_divisions": divisions, "expandable_segments": True}
    )
    assert settings.max_split_size == 64 * MiB
    assert settings.roundup_power2_divisions == (4,) * 16
    assert settings.expandable_segments


def test_no_max_split_size_is_none() -> None:
    assert parse_settings({"max_split_size": -1}).max_split_size is None


def test_stamps_contain_tick_activity_and_module() -> None:
    stamps: list[str] = []
    markers = Markers()
    markers.start(stamps.append)
    markers.step = 3
    tick = markers.advance(FORWARD, "Net")
    markers.enter_module(FORWARD, "Net.layer")
    mark = markers.read(stamps[-1], 0)
    assert mark == (tick, 3, FORWARD, "Net.layer")


def test_a_foreign_stamp_is_ignored() -> None:
    markers = Markers()
    markers.start(lambda text: None)
    assert markers.read("set by the script", 0) is None
    assert markers.read("", 0) is None


def test_without_stamps_entries_are_matched_by_time() -> None:
    now = 0

    def clock() -> int:
        return now * 1000

    markers = Markers(clock)
    markers.start(None)
    now = 10
    markers.advance(OPTIMIZER)
    now = 20
    markers.advance(OTHER)
    assert [markers.read("", at).activity for at in (5, 10, 19, 20, 99)] == [
        OTHER,
        OPTIMIZER,
        OPTIMIZER,
        OTHER,
        OTHER,
    ]


def frame(file: str, line: int = 1, name: str = "f") -> dict[str, object]:
    return {"filename": file, "line": line, "name": name}


TORCH = torch.__path__[0]


def test_the_line_is_the_innermost_user_line() -> None:
    stack = stacks.Stacks().read(
        [
            frame(f"{TORCH}/nn/functional.py", 5, "relu"),
            frame("/home/me/net.py", 7),
            frame("/home/me/train.py", 9),
        ]
    )
    assert stack.frame is not None
    assert (stack.frame.file, stack.frame.line, stack.op) == ("/home/me/net.py", 7, "functional.relu")
    assert not stack.from_engine


def test_without_a_user_line_the_library_line_is_used() -> None:
    stack = stacks.Stacks().read([frame(f"{TORCH}/x.py"), frame("/venv/site-packages/lib/model.py", 3)])
    assert stack.frame is not None
    assert stack.frame.file == "/venv/site-packages/lib/model.py"


def test_compiled_code_is_not_a_user_line() -> None:
    stack = stacks.Stacks().read(
        [frame("/tmp/torchinductor_me/ab/cab.py"), frame(f"{TORCH}/x.py"), frame("/home/me/train.py", 9)]
    )
    assert stack.frame is not None
    assert stack.frame.file == "/home/me/train.py"


def test_an_entry_without_a_stack_is_from_the_engine() -> None:
    assert stacks.Stacks().read([]).from_engine
    assert stacks.Stacks().read([frame(f"{TORCH}/autograd/function.py", 1, "apply")]).from_engine


def test_a_backward_pass_on_the_main_thread_is_recognized() -> None:
    stack = stacks.Stacks().read([frame(f"{TORCH}/autograd/__init__.py"), frame("/home/me/train.py", 9)])
    assert stack.in_backward
    assert not stack.from_engine
