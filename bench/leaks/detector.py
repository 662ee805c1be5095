"""Runs the leak detector on the corpus. Counts the leaks found, correct lines and holders, and false alarms.

    python -m bench.leaks.detector [--folder FOLDER] [--round NAME] [--gpu SIZE] [--jobs N] [--names] [--json FILE]
    python -m bench.leaks.detector --folder FOLDER [--gpu SIZE | --real-gpu]

Every program of tests/corpus, or of another folder that contains `leaking` and `healthy`, runs in its own process with
the detector attached, as with `legroom.watch`. The programs run on the GPU if there is one, and otherwise on the CPU.
`--gpu` uses a virtual GPU. `--names` lists the wrong results. A folder with a `manifest.json` is run with `legroom
run` on a virtual GPU, or on the GPU of this machine with `--real-gpu` (see `manifest`).
"""

import argparse
import json
import os
import sys
import time
import types
from pathlib import Path
from typing import Any, NoReturn

from bench.lib.command_line import command_line

os.environ.setdefault(
    "PYTORCH_NVML_BASED_CUDA_CHECK", "1"
)  # lists GPUs without initializing CUDA before the fork

import torch
from tests.corpus.programs import FOLDER, ROUNDS, Program, programs
from torch.utils.data import dataloader

from bench.leaks.manifest import score_folder
from bench.lib.table import print_table
from legroom.memory.detected_leak import DetectedLeak
from legroom.observe.leaks.detector import LeakDetector
from legroom.observe.virtual.gpu import VirtualGPU


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--names", action="store_true")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--round", choices=list(ROUNDS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--gpu", help="run on a virtual GPU of this size instead of the CPU: 2GiB")
    parser.add_argument(
        "--real-gpu", action="store_true", help="run a folder with a manifest on this machine's GPU"
    )
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--answer", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if (options.folder / "manifest.json").exists():
        gpu = None if options.real_gpu else options.gpu or "4GiB"
        score_folder(options.folder, gpu=gpu, jobs=options.jobs, names=options.names, output=options.json)
        return
    torch.set_num_threads(1)
    if options.one is not None:
        found = programs(options.one.parent.parent)
        _answer(next(each for each in found if each.path == options.one), options.gpu, options.answer)
    _warm_up()
    chosen = [each for each in programs(options.folder) if options.round in (None, each.round)]
    results = run_all(chosen, options.jobs, options.gpu)
    print_table(
        f"Corpus, torch {torch.__version__}, {'GPU' if any(r['on_gpu'] for _, r in results) else 'CPU'}",
        [
            "programs",
            "leaking",
            "detected",
            "line",
            "holder",
            "kind",
            "median turn",
            "healthy",
            "false alarms",
            "failed",
        ],
        _rows(results, options.folder),
    )
    for program, result in results:
        if options.names and not _is_right(program, result):
            print(
                f"  {program.path.parent.name}/{program.path.name}: {result['leaks'] or result['error'] or 'nothing'}"
            )
    if options.json:
        options.json.write_text(
            json.dumps([{"program": p.path.name, "leaks": p.leaks, **r} for p, r in results], indent=1)
        )


def run_all(corpus: list[Program], jobs: int, gpu: str | None = None) -> list[tuple[Program, dict[str, Any]]]:
    """Return each program with its result. `jobs` programs run at the same time."""
    waiting, running, done = list(corpus), {}, {}
    while waiting or running:
        while waiting and len(running) < jobs:
            program = waiting.pop(0)
            pid, pipe = _start(program, gpu)
            running[pid] = (program, pipe)
        pid, _ = os.wait()
        program, pipe = running.pop(pid)
        with os.fdopen(pipe) as answer:
            text = answer.read()
        done[program.path] = json.loads(text) if text else {"leaks": [], "error": "died", "on_gpu": False}
    return [(program, done[program.path]) for program in corpus]


def _start(program: Program, gpu: str | None) -> tuple[int, int]:
    """Start a process for one program. The process is a fork, or a new interpreter if CUDA is used, because CUDA
    cannot be used after a fork."""
    reading, writing = os.pipe()
    if torch.version.cuda is not None:
        os.set_inheritable(writing, True)
        words = [
            sys.executable,
            "-m",
            "bench.leaks.detector",
            "--one",
            str(program.path),
            "--answer",
            str(writing),
            *(["--gpu", gpu] if gpu else []),
        ]
        pid = os.posix_spawn(sys.executable, words, os.environ)
    else:
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            _answer(program, gpu, writing)
    os.close(writing)
    return pid, reading


def _answer(program: Program, gpu: str | None, writing: int) -> NoReturn:
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (until the process ends)
    os.write(writing, json.dumps(_watched(program, gpu)).encode())  # fits into a pipe's buffer: a few leaks
    os._exit(0)


def _watched(program: Program, gpu: str | None) -> dict[str, Any]:
    leaks: dict[Any, DetectedLeak] = {}
    if gpu is not None:
        VirtualGPU(gpu).__enter__()  # until the process ends
    detector = LeakDetector(lambda leak: leaks.setdefault(leak.identity, leak) and None)
    _follow_loaders(detector)
    detector.attach()
    main_module = types.ModuleType("__main__")
    main_module.__file__ = str(program.path)
    sys.modules["__main__"] = main_module
    began, error = time.perf_counter(), detector.error
    try:
        exec(compile(program.path.read_text(), str(program.path), "exec"), main_module.__dict__)
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"[:300]
    rows = [
        {"kind": k.kind, "how": k.how, "name": k.name, "line": k.line, "turn": k.step, "nodes": k.nodes_per_step,
         "bytes": k.bytes_per_step}
        for k in leaks.values()
    ]  # fmt: skip
    return {
        "leaks": rows[:8],
        "error": error or detector.error,
        "on_gpu": torch.cuda.is_available(),
        "seconds": round(time.perf_counter() - began, 2),
        "looking": round(detector.scan_seconds, 2),
    }


def _follow_loaders(detector: LeakDetector) -> None:
    """Follow every DataLoader, as `legroom run` does."""
    iterator: Any = dataloader._BaseDataLoaderIter
    original = iterator.__next__

    def following(self: Any) -> Any:
        batch = original(self)
        detector.iterations.next_batch()
        return batch

    iterator.__next__ = following


def _warm_up() -> None:
    """Import the modules that an optimizer imports at its first step. The import takes seconds, so it runs once
    before the forks."""
    if torch.version.cuda is not None:
        return
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    torch.optim.Adam([parameter]).step()


def _rows(results: list[tuple[Program, dict[str, Any]]], folder: Path) -> list[list[str]]:
    """Return one row per round of the corpus. A folder other than the corpus counts as one round."""
    if folder != FOLDER:
        return [_row(folder.name, results)]
    rounds = [(name, [(p, r) for p, r in results if p.round == name]) for name in ROUNDS]
    return [_row(f"{name} round", of_round) for name, of_round in rounds if of_round]


def _row(label: str, chosen: list[tuple[Program, dict[str, Any]]]) -> list[str]:
    leaking = [(p, r) for p, r in chosen if p.leaks]
    healthy = [(p, r) for p, r in chosen if not p.leaks]
    found = [(p, r["leaks"][0]) for p, r in leaking if r["leaks"]]
    turns = sorted(top["turn"] for _, top in found)

    def share(right: int) -> str:
        return f"{right} ({right / max(len(leaking), 1):.0%})"

    return [
        label,
        str(len(leaking)),
        share(len(found)),
        share(sum(top["line"] in p.lines for p, top in found)),
        share(sum(any(name in top["name"] for name in p.holders) for p, top in found)),
        share(sum(top["kind"] in p.kind.split("|") for p, top in found)),
        str(turns[len(turns) // 2]) if turns else "-",
        str(len(healthy)),
        str(sum(bool(r["leaks"]) for _, r in healthy)),
        str(sum(bool(r["error"]) for _, r in chosen)),
    ]


def _is_right(program: Program, result: dict[str, Any]) -> bool:
    if result["error"] or bool(result["leaks"]) is not program.leaks:
        return False
    if not program.leaks:
        return True
    top = result["leaks"][0]
    return top["line"] in program.lines and any(name in top["name"] for name in program.holders)


if __name__ == "__main__":
    main()
