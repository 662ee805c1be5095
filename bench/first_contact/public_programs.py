"""Runs public training programs, unmodified, with each command and prints what is right, wrong or refused.

    python -m bench.first_contact.public_programs CHECKOUTS [--only WORD ...] [--python PYTHON] [--write FILE] [--seconds 120]

CHECKOUTS is a folder with clones of the repositories that `PROGRAMS` names. Every program runs in a copy of its repository. Data that a program
would download is generated here with random contents. For each program:

- `estimate`: predicts the peak. The prediction is right if the program fits a virtual GPU that is 3% larger and not one that is 10% smaller.
- `run`: runs the program on the larger virtual GPU; right if it ends as it does with `python`.
- `run too small`: runs it on the smaller one; right if the report names a line of the program.
- `files`: what changed in the copy while `estimate` ran.
"""

import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy

from bench.lib.command_line import command_line
from bench.lib.table import print_table

MiB = 1 << 20


def mnist(folder: Path) -> None:
    """Random digits where torchvision's MNIST looks for them."""
    chance = numpy.random.default_rng(0)
    for place in ("data", "../data", "../../data", "../../data/mnist"):
        raw = (folder / place / "MNIST" / "raw").resolve()
        raw.mkdir(parents=True, exist_ok=True)
        for name, count in (("train", 6000), ("t10k", 1000)):
            images = chance.integers(0, 255, (count, 28, 28), dtype=numpy.uint8)
            labels = chance.integers(0, 10, count).astype(numpy.uint8)
            (raw / f"{name}-images-idx3-ubyte").write_bytes(
                struct.pack(">IIII", 2051, count, 28, 28) + images.tobytes()
            )
            (raw / f"{name}-labels-idx1-ubyte").write_bytes(
                struct.pack(">II", 2049, count) + labels.tobytes()
            )


def words(folder: Path) -> None:
    chance = numpy.random.default_rng(0)
    target = folder / "data" / "wikitext-2"
    target.mkdir(parents=True, exist_ok=True)
    for name in ("train", "valid", "test"):
        text = "\n".join(" ".join(f"w{n}" for n in chance.integers(0, 5000, 20)) for _ in range(1500))
        (target / f"{name}.txt").write_text(text)


def characters(folder: Path) -> None:
    chance = numpy.random.default_rng(0)
    target = folder / "data" / "shakespeare_char"
    target.mkdir(parents=True, exist_ok=True)
    for name in ("train", "val"):
        chance.integers(0, 65, 100_000).astype(numpy.uint16).tofile(target / f"{name}.bin")


def pictures(folder: Path) -> None:
    from PIL import Image

    chance = numpy.random.default_rng(0)
    for kind in ("imgs", "masks"):
        (folder / "data" / kind).mkdir(parents=True, exist_ok=True)
    for number in range(20):
        Image.fromarray(chance.integers(0, 255, (200, 300, 3), dtype=numpy.uint8)).save(
            folder / f"data/imgs/{number}.png"
        )
        Image.fromarray(chance.integers(0, 2, (200, 300), dtype=numpy.uint8)).save(
            folder / f"data/masks/{number}_mask.png"
        )


def waves(folder: Path) -> None:
    import torch

    length = numpy.arange(1000) + numpy.random.default_rng(0).integers(-80, 80, 100).reshape(100, 1)
    torch.save(numpy.sin(length / 20.0), folder / "traindata.pt")


@dataclass(frozen=True, kw_only=True)
class Program:
    repository: str
    folder: str
    arguments: str
    """The script and its arguments, for a short run."""
    prepare: Callable[[Path], None] | None = None

    @property
    def name(self) -> str:
        return f"{self.repository}/{self.folder}/{self.arguments.split()[0]}".replace("/./", "/")


def _gan(name: str, arguments: str = "--n_epochs 1 --batch_size 256") -> Program:
    return Program(
        repository="PyTorch-GAN",
        folder=f"implementations/{name}",
        arguments=f"{name}.py {arguments}",
        prepare=mnist,
    )


def _example(folder: str, arguments: str, prepare: Callable[[Path], None] | None = None) -> Program:
    return Program(repository="examples", folder=folder, arguments=arguments, prepare=prepare)


PROGRAMS = (
    _example("mnist", "main.py --epochs 1 --dry-run", mnist),
    _example("mnist_rnn", "main.py --epochs 1 --dry-run", mnist),
    _example("mnist_forward_forward", "main.py --epochs 2 --train_size 500 --test_size 100", mnist),
    _example("vae", "main.py --epochs 1", mnist),
    _example("siamese_network", "main.py --epochs 1 --dry-run", mnist),
    _example("dcgan", "main.py --dataset fake --niter 1 --dry-run --batchSize 16"),
    _example("imagenet", "main.py --dummy --epochs 1 -a resnet18 -b 8 --gpu 0"),
    _example("word_language_model", "main.py --epochs 1 --dry-run", words),
    _example("word_language_model", "main.py --epochs 1 --dry-run --model Transformer --nhead 2 --emsize 100 --nhid 100", words),
    _example("regression", "main.py"),
    _example("reinforcement_learning", "reinforce.py --log-interval 1"),
    _example("time_sequence_prediction", "train.py --steps 1", waves),
    Program(
        repository="nanoGPT", folder=".", prepare=characters,
        arguments="train.py config/train_shakespeare_char.py --max_iters=2 --eval_iters=1 --compile=False --batch_size=4",
    ),
    Program(repository="minGPT", folder=".", arguments="projects/adder/adder.py --trainer.max_iters=2"),
    _gan("gan"), _gan("dcgan"), _gan("wgan"), _gan("wgan_gp"), _gan("cgan"), _gan("acgan"), _gan("lsgan"), _gan("infogan"),
    _gan("aae"), _gan("began"), _gan("ebgan"), _gan("dragan"), _gan("sgan"), _gan("softmax_gan"), _gan("relativistic_gan"),
    _gan("cogan"), _gan("bgan"),
    Program(
        repository="Pytorch-UNet", folder=".", prepare=pictures, arguments="train.py --epochs 1 --batch-size 2 --scale 0.25"
    ),
    Program(repository="pygcn", folder="pygcn", arguments="train.py --epochs 2"),
    Program(repository="cleanrl", folder="cleanrl", arguments="dqn.py --total-timesteps 300 --learning-starts 100"),
    Program(repository="cleanrl", folder="cleanrl", arguments="ppo.py --total-timesteps 1100"),
    Program(repository="cleanrl", folder="cleanrl", arguments="c51.py --total-timesteps 300 --learning-starts 100"),
)  # fmt: skip


class Trial:
    """One program in a copy of its repository."""

    def __init__(self, program: Program, checkouts: Path, python: str, seconds: float) -> None:
        self.program = program
        self._python, self._seconds = python, seconds
        self._kept = tempfile.TemporaryDirectory(prefix="first-contact-")
        root = Path(self._kept.name) / program.repository
        shutil.copytree(
            checkouts / program.repository, root, ignore=shutil.ignore_patterns(".git", "data"), symlinks=True
        )
        for data in (checkouts / program.repository).rglob("data"):
            source = data.relative_to(checkouts / program.repository)
            if (
                data.is_dir()
                and not data.is_symlink()
                and ".git" not in source.parts
                and _size(data) < 64 * MiB
            ):
                shutil.copytree(data, root / source, dirs_exist_ok=True)
        self.folder = root / program.folder
        if program.prepare is not None:
            program.prepare(self.folder)

    def legroom(self, *options: str) -> tuple[int | None, str, str]:
        """Exit code (None after a time limit), standard output and standard error."""
        command = [self._python, "-m", "legroom", *options, *self.program.arguments.split()]
        return self._start(command)

    def plain(self) -> tuple[int | None, str, str]:
        return self._start([self._python, *self.program.arguments.split()])

    def _start(self, command: list[str]) -> tuple[int | None, str, str]:
        environment = {**os.environ, "OMP_NUM_THREADS": "2", "MPLBACKEND": "agg", "LEGROOM_CACHE": "off"}
        try:
            done = subprocess.run(
                command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=self._seconds,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return None, "", ""
        return done.returncode, done.stdout, done.stderr

    def files(self) -> dict[str, tuple[int, int]]:
        """Every file of the copy with its size and time of change."""
        root = Path(self._kept.name)
        return {
            str(path.relative_to(root)): (path.lstat().st_size, path.lstat().st_mtime_ns)
            for path in root.rglob("*")
            if "__pycache__" not in path.parts
        }

    def close(self) -> None:
        self._kept.cleanup()


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def try_program(trial: Trial) -> dict[str, str]:
    """What each command did: `right`, `wrong: …`, `refused: …`, or `time`."""
    row: dict[str, str] = {}
    before = trial.files()
    began = time.monotonic()
    code, out, error = trial.legroom("estimate", "--gpu", "8GiB", "--format", "json")
    row["seconds"] = f"{time.monotonic() - began:.0f}"
    after = trial.files()
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    row["files"] = "0" if not changed else f"{len(changed)}: {sorted(changed)[0]}"
    try:
        peak: int = json.loads(out)["peak_reserved_bytes"]
    except ValueError:
        lines = [line for line in (error or out).strip().splitlines() if line.strip()]
        row["estimate"] = "time" if code is None else f"refused: {lines[-1][:90] if lines else code}"
        peak = 256 * MiB
    large, small = f"{int(peak * 1.03) // MiB + 4}MiB", f"{max(1, int(peak * 0.9) // MiB)}MiB"
    code, out, error = trial.legroom("run", "--gpu", large)
    fits = code == 0
    if fits:
        row["run"] = "right"
    else:
        plain = trial.plain()[0]
        kind = (
            "time" if code is None else "out of memory" if "out of memory" in out + error else f"exit {code}"
        )
        row["run"] = (
            "right, as python" if plain == code != 0 and kind.startswith("exit") else f"wrong: {kind}"
        )
    code, out, error = trial.legroom("run", "--gpu", small)
    failed = code not in (0, None) and "out of memory" in out + error
    names_line = any(
        f"{path.name}:" in out + error or f"{path.name}, line" in out + error
        for path in trial.folder.rglob("*.py")
    )
    row["run too small"] = (
        "right" if failed and names_line else "wrong: no line" if failed else f"wrong: exit {code}"
    )
    if "estimate" not in row:
        row["estimate"] = "wrong: too low" if not fits else "right" if failed else "wrong: too high"
    row["peak"] = f"{peak // MiB} MiB"
    return row


def main(argv: list[str]) -> int:
    parser = command_line(__doc__)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args(argv)
    columns = ["estimate", "run", "run too small", "files", "seconds", "peak"]
    rows: list[list[str]] = []
    for program in PROGRAMS:
        if options.only and not any(word in program.name for word in options.only):
            continue
        if not (options.checkouts / program.repository).is_dir():
            print(f"skipped, {program.name}: there is no {options.checkouts / program.repository}")
            continue
        trial = Trial(program, options.checkouts, options.python, options.seconds)
        try:
            row = try_program(trial)
        finally:
            trial.close()
        rows.append([program.name, *(row.get(column, "") for column in columns)])
        print(*rows[-1], sep=" | ", flush=True)
    print_table("Public programs", ["program", *columns], rows)
    right = {
        column: sum(row[1 + index].startswith("right") for row in rows)
        for index, column in enumerate(columns[:3])
    }
    print(", ".join(f"{column}: {count} of {len(rows)}" for column, count in right.items()))
    if options.write:
        lines = ["| program | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
        lines += ["| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows]
        options.write.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
