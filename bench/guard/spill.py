"""Measures the saving and the cost of `legroom.Spill` on a real GPU, and compares the gradients. Needs a GPU.

    python -m bench.guard.spill [FOLDER]

ResNet-50 and GPT-2 small run the same steps on the same batch in four ways: plain, with all activations spilled, with
a budget of half of the activations, and with torch's `save_on_cpu`. The device is synchronized before and after a
timed step. The first steps, which allocate page-locked memory, are listed separately. Gradients are compared in
torch's deterministic mode. Times are measured without this mode. Writes FOLDER/spill.json. `--small` tests the program
on a virtual GPU. Needs torchvision and transformers.
"""

import gc
import json
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.autograd.graph import save_on_cpu
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import legroom
from bench.lib.command_line import command_line
from bench.lib.table import print_table
from legroom.units import GiB, MiB

WARM_UP, STEPS = 2, 6
Step = Callable[[], torch.Tensor]


def main() -> None:
    arguments = command_line(__doc__)
    arguments.add_argument("folder", nargs="?", type=Path)
    arguments.add_argument("--small", action="store_true")
    chosen = arguments.parse_args()
    with legroom.VirtualGPU("8GiB") if chosen.small else nullcontext():
        figures = measure(small=chosen.small)
    if chosen.folder is not None:
        chosen.folder.mkdir(parents=True, exist_ok=True)
        (chosen.folder / "spill.json").write_text(json.dumps(figures, indent=1))


def measure(*, small: bool) -> dict[str, Any]:
    figures: dict[str, Any] = {"device": torch.cuda.get_device_name(0), "torch": torch.__version__}
    if not small:
        figures["bandwidth"] = bandwidth()
        print(f"page-locked copies: {figures['bandwidth']}", flush=True)
    for name, make in (("ResNet-50", resnet), ("GPT-2 small", gpt2)):
        figures[name] = compare(name, *make(small))
        gc.collect()
        torch.cuda.empty_cache()
    return figures


def compare(what: str, model: torch.nn.Module, forward: Step) -> list[dict[str, Any]]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    run(model, forward, optimizer, nullcontext, 1)  # loads libraries and workspaces
    reference = gradients(model, forward, nullcontext)
    again = same(reference, gradients(model, forward, nullcontext))
    rows: list[dict[str, Any]] = []

    def add(name: str, inside: Callable[[], AbstractContextManager[Any]]) -> None:
        spill = inside() if name.startswith("Spill") else None
        enter = inside if spill is None else (lambda: spill)
        row = {"name": name, **run(model, forward, optimizer, enter, STEPS)}
        if isinstance(spill, legroom.Spill):
            row["host_peak"], row["seconds"] = spill.peak_host_bytes, spill.seconds
            row["moved_per_step"] = spill.moved_bytes // (WARM_UP + STEPS)
        row["same_bits"] = same(reference, gradients(model, forward, inside))
        rows.append(row)
        gc.collect()

    add("plain", nullcontext)
    add("Spill()", legroom.Spill)
    half = max(int(rows[-1]["host_peak"] / 2), MiB)
    add("Spill(half)", lambda: legroom.Spill(half))
    add("save_on_cpu", lambda: save_on_cpu(pin_memory=True))
    plain = rows[0]
    print_table(
        f"{what}; two plain steps are identical: {again}",
        ["", "peak", "saved", "step", "slowdown", "first step", "moved per step", "host", "same bits"],
        [
            [
                row["name"],
                f"{row['peak'] / GiB:.2f} GiB",
                f"{1 - row['peak'] / plain['peak']:.0%}",
                f"{row['step']:.1f} ms",
                f"{row['step'] / plain['step']:.2f}x",
                f"{row['first']:.0f} ms",
                f"{row.get('moved_per_step', 0) / GiB:.2f} GiB",
                f"{row.get('host_peak', 0) / GiB:.2f} GiB",
                str(row["same_bits"]),
            ]
            for row in rows
        ],
    )
    return rows


def run(
    model: torch.nn.Module,
    forward: Step,
    optimizer: torch.optim.Optimizer,
    inside: Callable[[], AbstractContextManager[Any]],
    steps: int,
) -> dict[str, Any]:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(WARM_UP + steps):
        began = time.perf_counter()
        with inside():
            loss = forward()
        loss.backward()
        del loss
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - began) * 1000)
    return {
        "peak": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "step": statistics.median(times[WARM_UP:]),
        "first": times[0],
        "times": times,
    }


def gradients(
    model: torch.nn.Module, forward: Step, inside: Callable[[], AbstractContextManager[Any]]
) -> list[torch.Tensor]:
    torch.manual_seed(7)
    # Otherwise two plain steps already differ.
    torch.use_deterministic_algorithms(True, warn_only=True)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]), inside():
        loss = forward()
    loss.backward()
    torch.use_deterministic_algorithms(False)
    found = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad(set_to_none=True)
    return found


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def resnet(small: bool) -> tuple[torch.nn.Module, Step]:
    torch.manual_seed(0)
    if small:
        model: torch.nn.Module = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3, padding=1),
            torch.nn.BatchNorm2d(16),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
        ).cuda()
        images = torch.randn(64, 3, 32, 32, device="cuda")
    else:
        import torchvision

        model = torchvision.models.resnet50().cuda()
        images = torch.randn(64, 3, 224, 224, device="cuda")
    for module in model.modules():  # running statistics would change from step to step
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 0.0
    return model, lambda: model(images).square().mean()


def gpt2(small: bool) -> tuple[torch.nn.Module, Step]:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_layer=2, n_embd=64, n_head=2) if small else GPT2Config()
    model = GPT2LMHeadModel(config).cuda()
    words = torch.randint(0, config.vocab_size, (2 if small else 8, 128 if small else 1024), device="cuda")

    def forward() -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(words).logits
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), words[:, 1:].flatten())

    return model, forward


def bandwidth() -> dict[str, str]:
    """Measure the speed of page-locked copies in each direction."""
    size = GiB // 2
    there, here = (
        torch.empty(size, dtype=torch.uint8, device="cuda"),
        torch.empty(size, dtype=torch.uint8, pin_memory=True),
    )
    speeds = {}
    for name, target, source in (("to host", here, there), ("to device", there, here)):
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(4):
            target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        speeds[name] = f"{4 * size / (time.perf_counter() - began) / 1e9:.1f} GB/s"
    return speeds


if __name__ == "__main__":
    main()
