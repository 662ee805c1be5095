"""Measures the time that the callbacks of Lightning and Transformers add to a training step.

    python -m bench.overhead.integrations [--steps 300] [--rounds 5]

The same trainer runs short training runs with and without the callback in alternating order, on the CPU or a real GPU.
Prints the median time of a step, and the ratio of the medians. The first steps of a training run, in which the leak
detector scans, are not counted. On the CPU, times are CPU times of the process, so other load on the machine has
little effect. A library that is not installed is skipped.
"""

import importlib.util
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from bench.lib.command_line import command_line
from bench.lib.table import print_table

WARM_UP = 60
"""The number of steps at the start of a training run that are not counted."""
WIDTHS = {"small network": 64, "larger network": 512}


def make_network(width: int) -> nn.Module:
    layers = [layer for _ in range(8) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, 1))


class Clock:
    """Records the times at which steps begin."""

    def __init__(self) -> None:
        self.read = time.perf_counter if torch.cuda.is_available() else time.process_time
        self.times: list[float] = []

    def step_begins(self) -> None:
        self.times.append(self.read())

    def median(self) -> float:
        return statistics.median(after - before for before, after in pairwise(self.times[WARM_UP:]))


def transformers_step(width: int, steps: int, with_callback: bool) -> float:
    import transformers

    from legroom.integrations.transformers import LegroomCallback

    clock = Clock()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = make_network(width)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": nn.functional.mse_loss(self.network(x).squeeze(-1), labels)}

    class Timer(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            clock.step_begins()

    data = [{"x": torch.randn(width), "labels": torch.zeros(())} for _ in range(256)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, per_device_train_batch_size=16, max_steps=steps, report_to=[], save_strategy="no",
            logging_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
        )  # fmt: skip
        callbacks = [Timer(), *([LegroomCallback()] if with_callback else [])]
        transformers.Trainer(Model(), arguments, train_dataset=data, callbacks=callbacks).train()
    return clock.median()


def lightning_step(width: int, steps: int, with_callback: bool) -> float:
    pytorch_lightning = _lightning()
    logging.getLogger(pytorch_lightning.__name__).setLevel(logging.ERROR)  # the import sets another level
    from legroom.integrations.lightning import LegroomCallback

    clock = Clock()

    class Model(pytorch_lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = make_network(width)

        def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
            return nn.functional.mse_loss(self.network(batch[0]).squeeze(-1), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    class Timer(pytorch_lightning.Callback):  # type: ignore[misc]
        def on_train_batch_start(self, *args: Any, **kwargs: Any) -> None:
            clock.step_begins()

    data = torch.utils.data.TensorDataset(torch.randn(256, width), torch.zeros(256))
    callbacks = [Timer(), *([LegroomCallback()] if with_callback else [])]
    pytorch_lightning.Trainer(
        max_steps=steps, callbacks=callbacks, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    ).fit(Model(), torch.utils.data.DataLoader(data, 16))  # fmt: skip
    return clock.median()


def _lightning() -> Any:
    if importlib.util.find_spec("lightning") is not None:
        return importlib.import_module("lightning.pytorch")
    return importlib.import_module("pytorch_lightning")


TRAINERS: dict[str, tuple[tuple[str, ...], Callable[[int, int, bool], float]]] = {
    "Transformers": (("transformers",), transformers_step),
    "Lightning": (("lightning", "pytorch_lightning"), lightning_step),
}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--steps", type=int, default=300, help="steps of each training")
    parser.add_argument("--rounds", type=int, default=5, help="trainings with and without the callback")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = []
    for trainer, (packages, step) in TRAINERS.items():
        if not any(importlib.util.find_spec(package) for package in packages):
            print(f"{trainer} is not installed.")
            continue
        for network, width in WIDTHS.items():
            times: dict[bool, list[float]] = {False: [], True: []}
            for _ in range(options.rounds):
                for with_callback in (False, True):
                    times[with_callback].append(step(width, options.steps, with_callback))
            plain, watched = statistics.median(times[False]), statistics.median(times[True])
            rows.append(
                [
                    f"{trainer}, {network}",
                    f"{plain * 1e3:.2f} ms",
                    f"{watched * 1e3:.2f} ms",
                    f"{watched / plain:.3f}",
                ]
            )
    print_table("A step of a trainer", ["trainer", "plain", "with LegroomCallback", "ratio"], rows)


if __name__ == "__main__":
    main()
