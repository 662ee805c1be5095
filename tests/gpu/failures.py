"""Checks the classification of real out-of-memory errors.

    python -m tests.gpu.failures [FOLDER]

The program fills the device until almost no memory is free, and then uses each library for the first time. It also
exhausts page-locked and host memory. Each allocator setting has its own process. The program prints one line per failure
and writes the error messages to FOLDER/failures.json.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ALLOCATORS = {"native": "", "expandable": "expandable_segments:True", "async": "backend:cudaMallocAsync"}
EXPECTED = {"page-locked": "pinned", "host": "host"}
"""The expected classification of cases that do not exhaust device memory. All other cases must be classified as
out-of-memory errors of the device."""


def main() -> None:
    if len(sys.argv) > 2 and sys.argv[1] == "--case":
        print(json.dumps(failures(sys.argv[2])))
        return
    found: list[dict[str, Any]] = []
    for allocator, settings in ALLOCATORS.items():
        done = subprocess.run(
            [sys.executable, "-m", "tests.gpu.failures", "--case", allocator],
            env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": settings, "PYTORCH_ALLOC_CONF": settings},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        lines = done.stdout.strip().splitlines()
        if done.returncode or not lines:
            found.append({"case": allocator, "text": done.stderr[-800:], "right": False, "certainty": "died"})
        else:
            found += json.loads(lines[-1])
    for each in found:
        verdict = "right" if each["right"] else "WRONG"
        print(f"{verdict}  {each['case']:32} {each['certainty']:10} {each['text'][:110]!r}", flush=True)
    print(f"{sum(each['right'] for each in found)} of {len(found)} right")
    if len(sys.argv) > 1:
        folder = Path(sys.argv[1])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "failures.json").write_text(json.dumps(found, indent=1))


def failures(allocator: str) -> list[dict[str, Any]]:
    import torch

    small = torch.randn(64, 64, device="cuda")
    positive, sparse = torch.eye(64, device="cuda"), torch.eye(64, device="cuda").to_sparse_csr()
    images, filters = torch.randn(8, 16, 64, 64, device="cuda"), torch.randn(16, 16, 3, 3, device="cuda")
    signal = torch.randn(1 << 16, device="cuda")
    cases: dict[str, Callable[[], Any]] = {
        "tensor": lambda: torch.empty(1 << 42, dtype=torch.uint8, device="cuda"),
        "impossibly large tensor": lambda: torch.empty(1 << 61, dtype=torch.uint8, device="cuda"),
    }
    if allocator == "native":
        cases |= {
            "page-locked": lambda: torch.empty(1 << 44, dtype=torch.uint8, pin_memory=True),
            "host": lambda: torch.empty(1 << 47, dtype=torch.uint8),
            "small tensor, full": lambda: torch.empty(64 << 20, dtype=torch.uint8, device="cuda"),
            "cuBLAS, full": lambda: small @ small,
            "cuDNN, full": lambda: torch.nn.functional.conv2d(images, filters),
            "cuSOLVER, full": lambda: torch.linalg.cholesky(positive),
            "cuFFT, full": lambda: torch.fft.fft(signal),
            "cuSPARSE, full": lambda: torch.sparse.mm(sparse, small),
            "NCCL, full": _all_reduce(small),
        }
    filling: list[Any] = []
    results = []
    for name, attempt in cases.items():
        if name.endswith("full") and not filling:
            filling = _fill()
        results.append(_classified(f"{allocator}: {name}", name, attempt))
    filling.clear()
    return results


def _classified(title: str, name: str, attempt: Callable[[], Any]) -> dict[str, Any]:
    import torch

    from legroom.diagnose.oom.recognize import classify

    try:
        attempt()
        torch.cuda.synchronize()
    except Exception as error:
        failure = classify(error)
        expected = EXPECTED.get(name)
        right = failure.is_oom if expected is None else failure.certainty == expected
        return {
            "case": title,
            "type": type(error).__name__,
            "text": str(error),
            "certainty": str(failure.certainty),
            "requested": failure.requested,
            "reason": failure.reason,
            "right": right,
        }
    return {"case": title, "text": "it did not fail", "certainty": "none", "right": True}


def _fill() -> list[Any]:
    """Allocate the remaining device memory in tensors of decreasing size."""
    import torch

    torch.cuda.empty_cache()
    tensors = []
    size = 32 << 30
    while size >= 1 << 20:
        try:
            tensors.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            size //= 2
    return tensors


def _all_reduce(tensor: Any) -> Callable[[], Any]:
    def run() -> None:
        import torch.distributed as dist

        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29531", "RANK": "0", "WORLD_SIZE": "1"}
        dist.init_process_group("nccl")
        dist.all_reduce(tensor)

    return run


if __name__ == "__main__":
    main()
