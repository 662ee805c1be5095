"""Kills a process 50 times during a save and checks the remaining checkpoint. Also compares the speed with torch.save
and torch.load.

    python -m bench.guard.checkpoints                     # both, on the CPU
    python -m bench.guard.checkpoints --gpu [FOLDER]      # speed with 2 GB on the GPU; also writes FOLDER/checkpoints.json

Kills: A forked process saves repeatedly and gets SIGKILL at a random time during a save. A kill counts only if the save
had not returned. The checkpoint is then resumed and compared with the values of its step. `torch.save` to one file is
tested in the same way.

Speed: All methods write the same tensors to the same folder, alternately. Files are in the page cache when they are
read.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import legroom
from bench.lib.command_line import command_line
from bench.lib.table import print_table
from legroom.errors import CheckpointError
from legroom.units import GiB, MiB

KILLS = 50
ROUNDS = 3
SECONDS = 15
"""The maximum time in seconds per location. After this time, no further round starts."""


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--size", type=float, help="GiB of state")
    chosen = parser.parse_args()
    if not chosen.gpu:
        kills()
    size = chosen.size or (2.0 if chosen.gpu else 0.25)
    figures = [speed(place, size, "cuda" if chosen.gpu else "cpu") for place in locations(size)]
    if chosen.gpu:
        figures.append(sharded_on_one_rank())
    if chosen.folder is not None:
        chosen.folder.mkdir(parents=True, exist_ok=True)
        (chosen.folder / "checkpoints.json").write_text(json.dumps(figures, indent=1))


# ------------------------------------------------------------ kills


class Weights(nn.Module):
    """A model whose weights are filled with the step number, so that a mixture of steps is visible."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList(nn.Parameter(torch.zeros(500_000)) for _ in range(6))

    def fill(self, step: int) -> None:
        with torch.no_grad():
            for part in self.parts:
                part.fill_(step)

    def is_at(self, step: int) -> bool:
        return all(bool((part == step).all()) for part in self.parts)


Save = Callable[[int], None]
Resume = Callable[[], int | None]
"""A function that resumes and checks the checkpoint. It returns the resumed step, or None if the checkpoint was
lost."""


def kills() -> None:
    torch.set_num_threads(1)  # only one thread survives a fork
    rows = []
    for name, make in (
        ("legroom.Checkpoints", lambda folder, model: with_legroom(folder, model)),
        (
            "legroom.Checkpoints, background",
            lambda folder, model: with_legroom(folder, model, background=True),
        ),
        ("torch.save over one file", with_torch),
    ):
        with folder_in(tempfile.gettempdir()) as folder:
            rows.append(
                [name, *(str(figure) for figure in killed(lambda make=make: make(folder, Weights())))]
            )
    print_table(
        f"{KILLS} kills in the middle of a save (12 MB, keep=1)",
        ["", "kills", "resumed the previous one", "resumed the one being saved", "lost"],
        rows,
    )


def killed(make: Callable[[], tuple[Save, Resume]]) -> tuple[int, int, int, int]:
    """Return the number of kills that counted, and how often the previous step, the new step, no step or a mixture of
    steps was found."""
    chance = random.Random(0)
    before = newer = lost = 0
    last = 0
    longest = 0.05
    while before + newer + lost < KILLS:
        begun, done, duration = run_and_kill(make, last, chance.uniform(0, longest))
        longest = 0.7 * longest + 0.3 * duration
        found = make()[1]()
        if begun == done:  # the save had returned before the kill
            last = found or 0
            continue
        if found is None or found < done:
            lost += 1
        elif found == begun:
            newer += 1
        else:
            before += 1
        last = found or done
    return before + newer + lost, before, newer, lost


def run_and_kill(make: Callable[[], tuple[Save, Resume]], last: int, delay: float) -> tuple[int, int, float]:
    """Run one process from step `last`, and kill it `delay` seconds after the start of its second save.

    Return the last started step, the last finished step, and the seconds of the first save.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        save, _ = make()
        for step in range(last + 1, last + 100):
            os.write(writer, b"b")
            save(step)
            os.write(writer, b"d")
        os._exit(0)
    os.close(writer)
    messages = os.read(reader, 1)
    began = time.perf_counter()
    messages += os.read(reader, 1)
    duration = time.perf_counter() - began
    messages += os.read(reader, 1)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while piece := os.read(reader, 100):
        messages += piece
    os.close(reader)
    return last + messages.count(b"b"), last + messages.count(b"d"), duration


def with_legroom(folder: Path, model: Weights, **options: Any) -> tuple[Save, Resume]:
    checkpoints = legroom.Checkpoints(folder, keep=1, **options)
    checkpoints.track(model=model)

    def save(step: int) -> None:
        model.fill(step)
        checkpoints.save(step)
        checkpoints.wait()

    def resume() -> int | None:
        try:
            step = checkpoints.resume()
        except CheckpointError:
            return None
        return step if model.is_at(step) else None

    return save, resume


def with_torch(folder: Path, model: Weights) -> tuple[Save, Resume]:
    path = folder / "checkpoint.pt"

    def save(step: int) -> None:
        model.fill(step)
        torch.save({"model": model.state_dict(), "step": step}, path)

    def resume() -> int | None:
        try:
            held = torch.load(path, weights_only=True)
            model.load_state_dict(held["model"])
        except Exception:  # torch raises different errors for a truncated file
            path.unlink(missing_ok=True)
            return None
        return held["step"] if model.is_at(held["step"]) else None

    return save, resume


# ------------------------------------------------------------ speed


def locations(size: float) -> list[str]:
    """Return the folders to write to. These are the temporary folder and a memory file system, where the speed of the
    disk does not matter."""
    wanted = 8 * size * GiB
    return [
        place for place in (tempfile.gettempdir(), "/dev/shm")
        if os.access(place, os.W_OK) and shutil.disk_usage(place).free > wanted
    ]  # fmt: skip


def training(size: float, device: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Build a model and Adam state of `size` GiB in total, in tensors of 16 MiB and some small tensors."""
    count = max(1, round(size * GiB / (3 * 16 * MiB)))
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(count))).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def speed(place: str, size: float, device: str) -> dict[str, Any]:
    model, optimizer = training(size, device)
    times: dict[str, list[float]] = {}
    processor: dict[str, list[float]] = {}

    def timed(name: str, work: Callable[[], Any]) -> None:
        synchronize(device)
        began, worked = time.perf_counter(), time.process_time()
        work()
        synchronize(device)
        times.setdefault(name, []).append(time.perf_counter() - began)
        processor.setdefault(name, []).append(time.process_time() - worked)

    same = True
    with folder_in(place) as folder:
        front = legroom.Checkpoints(folder / "front", keep=1)
        back = legroom.Checkpoints(folder / "back", keep=1, background=True)
        for checkpoints in (front, back):
            checkpoints.track(model=model, optimizer=optimizer)
        path = folder / "checkpoint.pt"
        began = time.perf_counter()
        # The first round is listed separately: it allocates page-locked memory.
        while len(times.get("torch.load", ())) < 2 or (
            len(times["torch.load"]) <= ROUNDS and time.perf_counter() - began < SECONDS
        ):
            timed("torch.save", lambda: torch_save(model, optimizer, path))
            timed("torch.save, fsync and rename", lambda: torch_save(model, optimizer, path, safely=True))
            timed("Checkpoints.save", lambda: front.save(1))
            timed("Checkpoints.save, background: until it returns", lambda: back.save(1))
            timed("Checkpoints.save, background: the rest", back.wait)
            timed("torch.load", lambda: torch_load(model, optimizer, path, device))
            bytes_before = fingerprint(model, optimizer)
            timed("Checkpoints.resume", front.resume)
            same &= fingerprint(model, optimizer) == bytes_before
        written = front.last.size if front.last else 0
    first = {name: values.pop(0) for name, values in times.items()}
    middle = {name: statistics.median(values) for name, values in times.items()}
    rows = [
        [name, f"{seconds:.2f} s", f"{written / seconds / 1e9:.2f} GB/s", f"{first[name]:.2f} s", f"{middle[baseline_of(name)] / seconds:.2f}x",
         f"{statistics.median(processor[name][1:]):.2f} s"]
        for name, seconds in middle.items()
    ]  # fmt: skip
    where = torch.cuda.get_device_name(0) if device == "cuda" else "the CPU"
    print_table(
        f"{written / 1e9:.2f} GB on {where}, {place}, torch {torch.__version__}; identical after resuming: {same}",
        ["", "median", "", "first", "speed relative to torch", "processor time"],
        rows,
    )
    return {"place": place, "device": where, "bytes": written, "same": same, "seconds": times, "first": first}


def baseline_of(name: str) -> str:
    """Return the name of the method with which a method is compared."""
    if "resume" in name or "load" in name:
        return "torch.load"
    return "torch.save" if name == "torch.save" else "torch.save, fsync and rename"


def torch_save(
    model: nn.Module, optimizer: torch.optim.Optimizer, path: Path, *, safely: bool = False
) -> None:
    """Save with `torch.save`. With `safely`, write a new file, call fsync and rename the file, as careful scripts do."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    if not safely:
        torch.save(state, path)
        return
    new = path.with_suffix(".new")
    with open(new, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def torch_load(model: nn.Module, optimizer: torch.optim.Optimizer, path: Path, device: str) -> None:
    held = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(held["model"])
    optimizer.load_state_dict(held["optimizer"])


def fingerprint(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[tuple[float, float]]:
    moments = [state["exp_avg_sq"] for state in optimizer.state.values()]
    return [
        (tensor.double().sum().item(), tensor.double().square().sum().item()) for tensor in [*model.parameters(), *moments]
    ]  # fmt: skip


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def sharded_on_one_rank() -> dict[str, Any]:
    """Save FSDP2 on one rank with NCCL, and resume with a plain model."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29532", RANK="0", WORLD_SIZE="1")
    on_gpu = torch.cuda.is_available()
    device = "cuda" if on_gpu else "cpu"
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
    same = {}
    for background in (False, True):
        with folder_in(tempfile.gettempdir()) as folder:
            model, _ = training(0.1, device)
            sharded = fully_shard(model)
            optimizer = torch.optim.Adam(sharded.parameters(), lr=1e-3)
            sharded(torch.randn(4, 2048, device=device)).sum().backward()
            optimizer.step()
            checkpoints = legroom.Checkpoints(folder, background=background)
            checkpoints.track(model=sharded, optimizer=optimizer)
            checkpoints.save(1)
            checkpoints.wait()
            plain, its_optimizer = training(0.1, device)
            checkpoints.track(model=plain, optimizer=its_optimizer)
            checkpoints.resume()
            whole = [parameter.full_tensor() for parameter in sharded.parameters()]
            same["background" if background else "foreground"] = all(
                torch.equal(ours, theirs) for ours, theirs in zip(plain.parameters(), whole, strict=True)
            )
    dist.destroy_process_group()
    print(f"FSDP2 on one rank ({device}), resumed by a plain model, identical: {same}", flush=True)
    return {"fsdp_on_one_rank": same}


@contextlib.contextmanager
def folder_in(place: str) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="legroom-bench-", dir=place))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
