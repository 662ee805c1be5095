"""A search over the space of `gpt_space` on a real GPU of which another program holds the most: one trial at a time, two by hand, and Legroom.

    python -m bench.tuning.shared_gpu FOLDER --seconds 230

- `one at a time`: each trial has the GPU to itself; one that runs out of memory has failed, and the searcher hears just that, as in Ray Tune.
- `two at a time`: the same with two, and nobody who counts memory.
- `legroom local`: several at a time, as far as they fit.

All start their trials from the same warm fork server, so what is compared is the search, not imports. Random search draws the same configurations in all.
Seeds are done one after the other until the time is over. `--virtual 192MiB` tries it out where there is no GPU, with tiny models.
"""

import argparse
import contextlib
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from bench.tuning import gpt_space
from bench.tuning.lost_trials import Clock, legroom_row
from bench.tuning.lost_trials_table import show
from bench.tuning.other_program import ROOM, neighbour
from bench.tuning.plain_step import plain_step
from legroom.tuning.api import run_job
from legroom.tuning.engines.engine import Job
from legroom.tuning.engines.fork_server import ended, fork_server
from legroom.tuning.engines.local import LocalEngine
from legroom.tuning.memory.admission import real_places, virtual_places
from legroom.tuning.search.searchers import Result, make_searcher
from legroom.tuning.space.space import read_space
from legroom.tuning.trial.function import TrainFunction

FUNCTION = "bench/tuning/gpt_space.py:train"
PLAIN, TWO, OURS = "one at a time", "two at a time", "legroom local"
TINY = {
    "width": {"int_log2": [7, 10]}, "layers": {"int": [1, 2]}, "batch_size": {"int_log2": [3, 6]}, "texts": 96, "length": 32
}  # fmt: skip
FORK_SERVER = multiprocessing.get_context("forkserver")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=230.0)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--searches", nargs="+", default=("random",))
    parser.add_argument("--seeds", type=int, nargs="+", default=range(4))
    parser.add_argument("--systems", nargs="+", choices=(PLAIN, TWO, OURS), default=(PLAIN, OURS, TWO))
    parser.add_argument("--virtual", help="size of a virtual GPU")
    asked = parser.parse_args()
    began = time.monotonic()
    space = {**gpt_space.SPACE, **TINY} if asked.virtual else gpt_space.SPACE
    rows: list[dict[str, Any]] = []
    longest = 0.0
    FORK_SERVER.set_forkserver_preload(
        ["torch", "legroom.tuning.engines.preloaded", "bench.tuning.gpt_space"]
    )
    with contextlib.nullcontext() if asked.virtual else neighbour():
        list(_said([_started(None, asked.virtual)]))
        ended(fork_server(TrainFunction.of(FUNCTION)), 0)  # both fork servers are warm from here on
        for seed in asked.seeds:
            for search in asked.searches:
                start = time.monotonic()
                if start - began + longest > asked.seconds:
                    break
                for system in asked.systems:
                    if system == OURS:
                        row = run_legroom(space, search, seed, asked.trials, asked.virtual)
                    else:
                        at_once = 1 if system == PLAIN else 2
                        row = run_plain(space, search, seed, asked.trials, at_once, asked.virtual)
                    rows.append(
                        {"system": system, "search": search, "seed": seed, "asked": asked.trials, **row}
                    )
                    (asked.folder / "shared_gpu.json").write_text(json.dumps(rows))
                longest = max(longest, time.monotonic() - start)
    show(rows, PLAIN)


def run_legroom(space: Any, search: str, seed: int, trials: int, virtual: str | None) -> dict[str, Any]:
    """One study of Legroom's. It is told how much room there is: not every container shows what others hold."""
    if virtual:
        places = virtual_places(virtual)
    else:
        places = [replace(real_places()[0], memory=ROOM, held=0, machine="this one")]

    def asked(folder: Path, clock: Clock) -> Any:
        job = Job(
            function=TrainFunction.of(FUNCTION), space=read_space(space), metric="loss", mode="min", search=search,
            trials=trials, places=places, seed=seed, folder=folder,
        )  # fmt: skip
        return run_job(job, LocalEngine(), resume=False, watchers=[clock])

    return legroom_row(asked)


def run_plain(
    space: Any, search: str, seed: int, trials: int, at_once: int, virtual: str | None
) -> dict[str, Any]:
    """One study without anything that knows of memory."""
    searcher = make_searcher(search, read_space(space), "min", seed)
    began = time.perf_counter()
    told: list[dict[str, Any]] = []
    running: dict[Connection, int] = {}
    while running or len(told) < trials:
        while len(running) < at_once and len(told) < trials:
            config = searcher.propose(len(told))
            assert config is not None
            running[_started(config, virtual)] = len(told)
            now = time.perf_counter() - began
            told.append(
                {
                    "lost": False,
                    "ended": False,
                    "seconds": -now,
                    "losses": [],
                    "split": False,
                    "config": config,
                }
            )
        for pipe, said in _said(list(running)):
            now, number = time.perf_counter() - began, running[pipe]
            trial = told[number]
            if isinstance(said, float):
                trial["losses"].append([now, said])
                continue
            del running[pipe]
            trial.update(ended=True, lost=said == "out of memory", seconds=trial["seconds"] + now)
            if said not in ("out of memory", "done"):
                sys.exit(f"a trial failed otherwise than for want of memory: {said}")
            last = None if trial["lost"] else trial["losses"][-1][1]
            searcher.learn(number, trial["config"], Result(last))
    return {
        "trials": told,
        "proposed": [trial["config"] for trial in told],
        "rejected": 0,
        "ooms": sum(trial["lost"] for trial in told),
        "seconds": time.perf_counter() - began,
    }


def _started(config: dict[str, Any] | None, virtual: str | None) -> Connection:
    ours, theirs = FORK_SERVER.Pipe()
    FORK_SERVER.Process(target=_trial, args=(config, virtual, theirs), daemon=True).start()
    theirs.close()
    return ours


def _said(pipes: list[Connection]) -> Iterator[tuple[Connection, Any]]:
    for pipe in wait(pipes):
        assert isinstance(pipe, Connection)
        try:
            yield pipe, pipe.recv()
        except EOFError:
            yield pipe, "its process died"


def _trial(config: dict[str, Any] | None, virtual: str | None, pipe: Connection) -> None:
    """The process of one trial: its losses, and at last how it ended."""
    import torch

    from legroom import VirtualGPU
    from legroom.diagnose.oom.recognize import classify

    torch.set_num_threads(1)
    try:
        with VirtualGPU(virtual) if virtual else contextlib.nullcontext():
            for loss in gpt_space.epochs(config, "cuda", plain_step) if config else ():
                pipe.send(loss)
        pipe.send("done")
    except Exception as error:
        is_memory = isinstance(error, RuntimeError) and classify(error).is_oom
        pipe.send("out of memory" if is_memory else f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
