"""Selects the GPU of a tuning benchmark. The GPU is a virtual GPU, or a real GPU on which another program uses most of
the memory."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

REAL = "real"
"""The value that selects this machine's GPU, shared with another program, instead of a virtual GPU."""
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
    """Inside the context, make `cuda` a virtual GPU of that size, or the real GPU."""
    if size == REAL:
        return contextlib.nullcontext()
    from legroom import VirtualGPU

    return VirtualGPU(size)
