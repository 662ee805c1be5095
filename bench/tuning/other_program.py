"""The GPU of a tuning benchmark: a virtual one, or a real one most of which another program uses."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

REAL = "real"
"""Instead of a virtual GPU's size: this machine's GPU, shared with another program."""
ROOM = 16 << 30
"""The number of bytes that the other program leaves free."""


@contextlib.contextmanager
def other_program() -> Iterator[None]:
    """Run another program that uses all but `ROOM` of the GPU."""
    code = (
        f"import torch; free = torch.cuda.mem_get_info()[0]; kept = torch.empty(free - {ROOM}, dtype=torch.uint8, device='cuda');"
        "print('here', flush=True); input()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "here"
    try:
        yield
        if process.poll() is not None:
            sys.exit("the other program exited: more memory was free than reported")
    finally:
        process.kill()
        process.wait()


def gpu_of(size: str) -> contextlib.AbstractContextManager[object]:
    """Within the context, `cuda` is a virtual GPU of that size, or the real one."""
    if size == REAL:
        return contextlib.nullcontext()
    from legroom import VirtualGPU

    return VirtualGPU(size)
