"""Runs each script twice: unmodified under `legroom run --gpu SIZE`, and ported to the CPU.

    python wild_harness.py FOLDER

The program reads lines of JSON (`[name, gpu]`) from stdin. It imports torch once and forks for every run. The two runs
of a script run at the same time. For each script, it writes these files to FOLDER: `name.virtual.out` and
`name.cpu.out` (stdout), `name.*.err` (stderr), and `name.json` (the exit codes and the report of `legroom run`). Then
it prints the name.

To port a script to the CPU, regular expressions rename devices, remove `.cuda()` and `.pin_memory()`, and replace
`torch.cuda` with `NoCuda`, whose functions do nothing. The port shares no code with the virtual GPU.
"""

import gc
import json
import os
import re
import runpy
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parent / "scripts_in_the_wild"
PORT = [
    (r'f"cuda:\{[^}]*\}"', '"cpu"'),
    (r'"cuda(:\d)?"', '"cpu"'),
    (r"\.cuda\([^()]*\)", ".cpu()"),
    (r"\.pin_memory\(\)", ""),
    (r"pin_memory=True", "pin_memory=False"),
    (r"torch\.cuda\.amp\.GradScaler\(", 'torch.amp.GradScaler("cpu", '),
    (r"torch\.cuda\.amp\.autocast\(", 'torch.autocast("cpu", dtype=torch.float16, '),
    (r"from torch\.cuda\.amp import GradScaler, autocast", "from functools import partial\n"
     'GradScaler = partial(torch.amp.GradScaler, "cpu")\n'
     'autocast = partial(torch.autocast, "cpu", dtype=torch.float16)'),
    (r"torch\.cuda\.(\w+Tensor)", r"torch.\1"),
    (r"torch\.cuda\b", "no_cuda"),
    (r"\w+\.record_stream\(.*\)", "pass"),
    (r"torch\.device\(\"cpu\", [^()]*(\(\))?\)", 'torch.device("cpu")'),
    (r"device_ids=\[local_rank\], output_device=local_rank", ""),
    (r"device_ids=\[gpu\]", ""),
    (r'"nccl"', '"gloo"'),
    (r"\.to\(0\)", ""),
    (r"devices=\[0\]", "devices=[]"),
]  # fmt: skip
NO_CUDA_IMPORT = "from wild_harness import NoCuda; no_cuda = NoCuda()\n"


def main() -> None:
    folder = Path(sys.argv[1])
    import numpy  # noqa: F401
    import torch._dynamo  # noqa: F401  (making an optimizer loads it)

    import legroom.run.recording  # noqa: F401

    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):  # built for another torch version; transformers must not import it
        sys.modules["torchvision"] = None  # type: ignore[assignment]
    gc.collect()
    gc.freeze()  # forks do not scan objects that already exist

    for line in sys.stdin:
        name, gpu = json.loads(line)
        running = {
            start(partial(on_virtual_gpu, name, gpu, folder), folder / f"{name}.virtual"): "virtual",
            start(partial(on_cpu, name), folder / f"{name}.cpu"): "cpu",
        }
        found: dict[str, Any] = {}
        while running:
            pid, status = os.wait()
            found[running.pop(pid)] = os.waitstatus_to_exitcode(status)
        report = folder / f"{name}.report.json"
        found["report"] = json.loads(report.read_text()) if report.exists() else None
        (folder / f"{name}.json").write_text(json.dumps(found))
        print(name, flush=True)


def start(work: Callable[[], int], prefix: Path) -> int:
    """Fork a process that calls `work` in a new folder and writes its output to files. Return its process ID."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        for descriptor, ending in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{prefix}.{ending}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(tempfile.mkdtemp(dir=prefix.parent))
        code = work()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def on_virtual_gpu(name: str, gpu: str, folder: Path) -> int:
    from legroom.cli import main as legroom
    from legroom.diagnose.report.run_report import report_from_capture
    from legroom.memory.capture.capture import read_capture

    code = legroom(["run", "--gpu", gpu, "-o", "run.legroom", str(SCRIPTS / f"{name}.py")])
    report = report_from_capture(read_capture("run.legroom"), path="run.legroom").as_json()
    (folder / f"{name}.report.json").write_text(json.dumps(report))
    return code


def on_cpu(name: str) -> int:
    """Run the script ported to the CPU."""
    source = (SCRIPTS / f"{name}.py").read_text()
    for pattern, replacement in PORT:
        source = re.sub(pattern, replacement, source)
    Path(f"{name}.py").write_text(source.replace("\nimport torch\n", "\nimport torch\n" + NO_CUDA_IMPORT, 1))
    if "spawn(" in source:  # spawned processes import the script by its name
        os.environ["PYTHONPATH"] = str(Path(__file__).parent)
        os.execv(sys.executable, [sys.executable, f"{name}.py"])
    import torch

    torch._dynamo.config.disable = True  # as on a virtual GPU, which runs the step eagerly
    sys.argv = [f"{name}.py"]
    runpy.run_path(f"{name}.py", run_name="__main__")
    return 0


class NoCuda:
    """A replacement for `torch.cuda` in a ported script. Most functions do nothing and return 0."""

    def __getattr__(self, name: str) -> Any:
        import torch

        known: dict[str, Any] = {
            "is_available": lambda: True,
            "is_bf16_supported": lambda: True,
            "device_count": lambda: 1,
            "memory_snapshot": list,
            "memory_stats": dict,
            "mem_get_info": lambda *_: (1 << 40, 1 << 40),
            "get_device_properties": _Anything,
            "get_rng_state": torch.get_rng_state,
            "get_rng_state_all": lambda: [torch.get_rng_state()],
            "OutOfMemoryError": torch.OutOfMemoryError,
            "nvtx": _Anything(),
            "amp": _Anything(),
        }
        return known.get(name) or (_Anything if name in _CLASSES else lambda *_args, **_options: 0)


_CLASSES = ("Stream", "Event", "stream", "current_stream", "device")


class _Anything:
    """A replacement for streams, events, devices and their properties. Every attribute exists."""

    total_memory = 0

    def __init__(self, *_args: Any, **_options: Any) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_error: object) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, _other: Any) -> float:
        return 0.0

    def record_event(self, *_args: Any) -> "_Anything":
        return self

    def __getattr__(self, name: str) -> Any:
        return lambda *_args, **_options: None


if __name__ == "__main__":
    main()
