"""The GPU of a bench: a virtual one, or a real one of which another program holds the most."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

REAL = "real"
"""Instead of a virtual GPU's size: this machine's GPU, with a neighbour."""
ROOM = 16 << 30
"""Bytes that the neighbour leaves."""


@contextlib.contextmanager
def neighbour() -> Iterator[None]:
    """It has all but `ROOM` of the GPU inside."""
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
            sys.exit("the other program ended meanwhile: there was more room than is said")
    finally:
        process.kill()
        process.wait()


def gpu_of(size: str) -> contextlib.AbstractContextManager[object]:
    """`cuda` inside: a virtual GPU of that size, or the real one."""
    if size == REAL:
        return contextlib.nullcontext()
    from legroom import VirtualGPU

    return VirtualGPU(size)
