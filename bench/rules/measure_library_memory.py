"""Measures the GPU memory that CUDA and its libraries allocate outside PyTorch. Needs a GPU that no other program
uses.

    python -m bench.rules.measure_library_memory OUT [--no-models]

Writes OUT/library_memory.json and prints a table. Needs torch, torchvision and transformers, not Legroom. Memory
outside PyTorch is the memory in use on the device minus the memory that PyTorch reserved. Every use of a library runs
in its own process, once alone and once after all earlier uses. Whole training steps show the total memory use of a
program. The last table shows the memory that must be free when a library is used for the first time.
"""

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from bench.lib.command_line import command_line
from bench.lib.forks import in_fork

MiB = 1 << 20


def outside() -> float:
    """Return the memory in MiB that is in use on the device but not reserved by PyTorch."""
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return (total - free - torch.cuda.memory_reserved()) / MiB


def _tensor(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    return torch.ones(shape, device="cuda", dtype=dtype, requires_grad=grad)


def _matmul(dtype: torch.dtype, *, backward: bool) -> None:
    left, right = (_tensor(256, 256, dtype=dtype, grad=backward) for _ in range(2))
    result = left @ right
    if backward:
        result.sum().backward()


def _linear(dtype: torch.dtype) -> None:
    torch.nn.Linear(256, 256, device="cuda", dtype=dtype)(_tensor(256, 256, dtype=dtype)).sum().backward()


def _in_thread(use: Callable[[], None]) -> None:
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()


def _in_stream() -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        _matmul(torch.float32, backward=False)


def _convolution(dtype: torch.dtype) -> None:
    layer = torch.nn.Conv2d(32, 32, 3, padding=1, device="cuda", dtype=dtype)
    layer(_tensor(8, 32, 32, 32, dtype=dtype, grad=True)).sum().backward()


def _attention(dtype: torch.dtype) -> None:
    query = _tensor(2, 4, 256, 64, dtype=dtype, grad=True)
    F.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()


def _lstm() -> None:
    torch.nn.LSTM(64, 64, device="cuda")(_tensor(16, 8, 64, grad=True))[0].sum().backward()


def _step(optimizer: str, **options: Any) -> None:
    layers = torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.GELU(), torch.nn.Dropout(0.1)
    )
    layers.cuda()
    made = getattr(torch.optim, optimizer)(layers.parameters(), lr=0.1, **options)
    F.cross_entropy(layers(_tensor(16, 64)), torch.zeros(16, dtype=torch.long, device="cuda")).backward()
    made.step()


def _compiled() -> None:
    torch.compile(lambda x: (x.sin() * 2 + x).relu())(_tensor(256, 256, grad=True)).sum().backward()


USES: dict[str, Callable[[], Any]] = {
    "context": lambda: _tensor(1),
    "elementwise and reductions": lambda: (_tensor(64, 64).relu() + 1).softmax(-1).sum().item(),
    "random numbers": lambda: torch.randn(100, device="cuda"),
    "cuBLAS, forward": lambda: _matmul(torch.float32, backward=False),
    "cuBLAS, backward thread": lambda: _matmul(torch.float32, backward=True),
    "cuBLAS, bfloat16": lambda: _matmul(torch.bfloat16, backward=True),
    "cuBLAS, half": lambda: _matmul(torch.float16, backward=True),
    "linear with bias": lambda: _linear(torch.float32),
    "linear with bias, bfloat16": lambda: _linear(torch.bfloat16),
    "cuBLAS, another stream": _in_stream,
    "cuBLAS, third stream": _in_stream,
    "cuBLAS, another thread": lambda: _in_thread(lambda: _matmul(torch.float32, backward=False)),
    "cuDNN convolution": lambda: _convolution(torch.float32),
    "cuDNN convolution, half": lambda: _convolution(torch.float16),
    "attention, bfloat16": lambda: _attention(torch.bfloat16),
    "attention, float32": lambda: _attention(torch.float32),
    "cuDNN LSTM": _lstm,
    "SGD": lambda: _step("SGD", momentum=0.9),
    "AdamW": lambda: _step("AdamW"),
    "AdamW, fused": lambda: _step("AdamW", fused=True),
    "cuFFT": lambda: torch.fft.fft2(_tensor(64, 64)).abs().sum().item(),
    "cuSOLVER and MAGMA": lambda: (
        torch.linalg.inv(torch.eye(64, device="cuda")),
        torch.linalg.eigh(torch.eye(64, device="cuda")),
    ),
    "SVD, QR": lambda: (torch.linalg.svd(_tensor(64, 64)), torch.linalg.qr(_tensor(64, 64))),
    "cuSPARSE": lambda: torch.eye(64, device="cuda").to_sparse_csr() @ _tensor(64, 64),
    "sort, unique, nonzero": lambda: (
        _tensor(4096).sort(),
        _tensor(4096).unique(),
        _tensor(4096).nonzero(),
        _tensor(64, 64).topk(4),
    ),
    "torch.compile": _compiled,
}

MODELS = (
    ("resnet50", "sgdm", "fp32", 8), ("gpt2", "adamw", "amp_bf16", 2), ("bert_base", "adamw", "fp32", 2), ("unet", "adam", "fp32", 2),
    ("lstm", "adam", "amp_fp16", 8), ("vit_b_16", "adamw", "amp_bf16", 4), ("convnext_tiny", "adamw", "fp32", 4),
    ("llama_gqa", "adamw", "bf16", 2), ("diffusion_unet", "adamw", "amp_bf16", 2), ("efficientnet_b0", "nesterov", "amp_fp16", 4),
    ("swin_t", "adamw", "fp32", 4), ("gru_classifier", "adam", "amp_fp16", 8), ("transformer_encoder", "adam", "fp32", 4),
    ("mlp_mixer", "adam", "fp32", 4), ("distilbert", "adamw", "amp_bf16", 4), ("vgg16", "sgdm", "fp32", 4),
)  # fmt: skip


def measured(work: Callable[[], Any]) -> Any:
    """Run `work` in a process that has not used the GPU. Return its result, or the text of its error."""

    def attempt() -> Any:
        try:
            return work()
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:160]}"

    return in_fork(attempt)


def alone(name: str) -> float:
    USES["context"]()
    before = outside()
    USES[name]()
    return round(outside() - (before if name != "context" else 0), 1)


def in_sequence() -> dict[str, float]:
    found: dict[str, float] = {}
    before = 0.0
    for name, use in USES.items():
        with contextlib.suppress(Exception):
            use()
        now = outside()
        found[name], before = round(now - before, 1), now
    return found


def whole_step(model: str, optimizer: str, precision: str, batch: int) -> list[float]:
    """Return the memory outside PyTorch after the model is created, and after each of three steps."""
    from bench.accuracy.cases.build_step import build
    from bench.accuracy.cases.case import Case

    _, _, step = build(Case(model=model, optimizer=optimizer, precision=precision, batch=batch), "cuda")
    found = [outside()]
    for _ in range(3):
        step()
        found.append(outside())
    return [round(value, 1) for value in found]


def with_free(name: str, free: int) -> str:
    """Use a library for the first time with `free` MiB of the device free."""
    USES["elementwise and reductions"]()
    operands = [_tensor(256, 256, grad=True) for _ in range(2)]
    if name == "cuBLAS, backward thread":
        result = (operands[0] @ operands[1]).sum()
        torch.cuda.synchronize()
    available = torch.cuda.mem_get_info()[0] // MiB
    kept = torch.empty((available - free) * MiB, dtype=torch.uint8, device="cuda")
    try:
        if name == "cuBLAS, forward":
            operands[0].detach() @ operands[1].detach()
        elif name == "cuBLAS, backward thread":
            result.backward()
        else:
            USES[name]()
        torch.cuda.synchronize()
    except RuntimeError as error:
        return str(error).splitlines()[0][:120]
    del kept
    return "ok"


def least_free(name: str) -> dict[str, Any]:
    """Return the minimum free memory with which the first use succeeds, to within 4 MiB, and the error messages of the
    failures."""
    low, high, messages = 0, 320, {}
    while high - low > 4:
        middle = (low + high) // 2
        answer = measured(lambda middle=middle: with_free(name, middle))
        if answer == "ok":
            high = middle
        else:
            low = middle
            messages[middle] = answer
    return {"MiB": high, "failures": messages}


def main(argv: list[str]) -> int:
    parser = command_line(__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--no-models", action="store_true")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    began = time.monotonic()
    found: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda}

    def write() -> None:
        (options.out / "library_memory.json").write_text(json.dumps(found, indent=1))
        print(f"{time.monotonic() - began:.0f} s", flush=True)

    found["alone"] = {name: measured(lambda name=name: alone(name)) for name in USES}
    found["in sequence"] = measured(in_sequence)
    for name in USES:
        print(f"{name:<32}{found['alone'][name]!s:>12}{found['in sequence'].get(name)!s:>12}")
    write()
    found["least free"] = {
        name: least_free(name) for name in ("cuBLAS, forward", "cuBLAS, backward thread", "cuDNN convolution")
    }
    print(json.dumps(found["least free"], indent=1))
    write()
    if not options.no_models:
        found["models"] = {}
        for each in MODELS:
            found["models"][" ".join(map(str, each))] = answer = measured(lambda each=each: whole_step(*each))
            print(f"{each!s:<60}{answer}")
        write()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
