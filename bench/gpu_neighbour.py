"""Another program that holds most of a real GPU, for benches of what is done with the rest."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

ROOM = 16 << 30
"""Bytes that it leaves."""


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
