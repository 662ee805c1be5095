"""Measures how much more memory the first GPU uses than the other GPUs, for torch's DataParallel and for
`legroom.parallel` with "dp".

    python -m bench.scale.data_parallel [--gpus 2 4]

Two steps are computed on the CPU with virtual GPUs. The result is the first GPU's peak divided by the mean peak of
the other GPUs. The first GPU's part of the batch is chosen before the first step. The predicted peaks are printed
next to the measured peaks.
"""

from typing import Any

import torch
from torch import nn

import legroom
from bench.lib.command_line import command_line
from bench.lib.table import print_table
from bench.scale.models import GPT, ResNet50, image_batch, text_batch, token_loss
from legroom.units import format_size

STEPS = 2


def main() -> None:
    arguments = command_line(__doc__)
    arguments.add_argument("--gpus", type=int, nargs="*", default=[2, 4])
    chosen = arguments.parse_args()
    rows = []
    for gpus in chosen.gpus:
        for name in ("resnet50", "gpt"):
            for variant in ("nn.DataParallel", "legroom dp"):
                with legroom.VirtualGPU(*["16GiB"] * gpus):
                    rows.append(measure(name, variant, gpus))
                print(" | ".join(rows[-1]), flush=True)
    print_table(
        "Peak of the first GPU relative to the mean of the others",
        ("model", "GPUs", "variant", "first GPU's samples", "peaks", "first / others", "predicted"),
        rows,
    )


def work(name: str) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    if name == "resnet50":
        return ResNet50(), image_batch(64, 96)
    return GPT(8, 128, 4, 1024, 64), text_batch(128, 64, 1024)


def measure(name: str, variant: str, gpus: int) -> tuple[str, ...]:
    model, batch = work(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    rows = len(batch[0])
    share, predicted = f"{rows // gpus} of {rows}", ""
    for index in range(gpus):
        torch.cuda.reset_peak_memory_stats(index)
    if variant == "nn.DataParallel":
        wrapped = nn.DataParallel(model.cuda())
        x, y = (each.cuda() for each in batch)
        for _ in range(STEPS):
            token_loss(wrapped(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    else:
        run = legroom.parallel(model, optimizer, "dp", batch=batch)
        for _ in range(STEPS):
            run.step(lambda x, y: token_loss(run.model(x), y), *batch)
        shares = run.model.shares
        share = f"{shares[0]:g} of {rows}"
        predicted = ", ".join(map(format_size, run.choice.peaks))
    peaks = [torch.cuda.max_memory_allocated(index) for index in range(gpus)]
    ratio = peaks[0] / (sum(peaks[1:]) / (gpus - 1))
    return name, str(gpus), variant, share, ", ".join(map(format_size, peaks)), f"{ratio:.3f}", predicted


if __name__ == "__main__":
    main()
