"""Compares search methods on a real GPU on which another program uses most of the memory, by lost trials, best value
and time. Needs a GPU.

    python -m bench.tuning.shared_gpu FOLDER --seconds 230

- `one at a time`: Each trial has the GPU to itself. A trial that runs out of memory fails, and the searcher learns only
  that it failed.
- `two at a time`: Two trials run at a time, without regard to memory.
- `legroom local`: As many trials run at a time as fit.

All systems start trials from the same warm fork server, so that imports do not count. Random search draws the same
configurations in all systems. Seeds run one after another until the time is over. The space is `gpt_space`.
`--virtual 192MiB` tests the program without a GPU, with tiny models.
"""

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

from bench.lib.command_line import command_line
from bench.tuning import gpt_space
from bench.tuning.lost_trials import Clock, legroom_row
from bench.tuning.lost_trials_table import show
from bench.tuning.other_program import ROOM, other_program
from bench.tuning.plain_step import plain_step
from legroom.tuning.api import run_job
from legroom.tuning.engines.fork_server import fork_server, wait_for_exit
from legroom.tuning.engines.local import LocalEngine
from legroom.tuning.job import TuneJob
from legroom.tuning.memory.admission import real_gpus, virtual_gpus
from legroom.tuning.search.protocol import Result
from legroom.tuning.search.searchers import make_searcher
from legroom.tuning.space.space import read_space
from legroom.tuning.trial.function import TrainFunction

FUNCTION = "bench/tuning/gpt_space.py:train"
PLAIN, TWO, OURS = "one at a time", "two at a time", "legroom local"
TINY = {
    "width": {"int_log2": [7, 10]}, "layers": {"int": [1, 2]}, "batch_size": {"int_log2": [3, 6]}, "texts": 96, "length": 32
}  # fmt: skip
FORK_SERVER = multiprocessing.get_context("forkserver")


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=230.0)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--searches", nargs="+", default=("random",))
    parser.add_argument("--seeds", type=int, nargs="+", default=range(4))
    parser.add_argument("--systems", nargs="+", choices=(PLAIN, TWO, OURS), default=(PLAIN, OURS, TWO))
    parser.add_argument("--virtual", help="size of a virtual GPU")
    options = parser.parse_args()
    began = time.monotonic()
    space = {**gpt_space.SPACE, **TINY} if options.virtual else gpt_space.SPACE
    rows: list[dict[str, Any]] = []
    longest = 0.0
    FORK_SERVER.set_forkserver_preload(
        ["torch", "legroom.tuning.engines.preloaded", "bench.tuning.gpt_space"]
    )
    with contextlib.nullcontext() if options.virtual else other_program():
        list(_received([_started(None, options.virtual)]))
        wait_for_exit(fork_server(TrainFunction.of(FUNCTION)), 0)  # both fork servers are warm from here on
        for seed in options.seeds:
            for search in options.searches:
                start = time.monotonic()
                if start - began + longest > options.seconds:
                    break
                for system in options.systems:
                    if system == OURS:
                        row = run_legroom(space, search, seed, options.trials, options.virtual)
                    else:
                        at_once = 1 if system == PLAIN else 2
                        row = run_plain(space, search, seed, options.trials, at_once, options.virtual)
                    rows.append(
                        {"system": system, "search": search, "seed": seed, "requested": options.trials, **row}
                    )
                    (options.folder / "shared_gpu.json").write_text(json.dumps(rows))
                longest = max(longest, time.monotonic() - start)
    show(rows, PLAIN)


def run_legroom(space: Any, search: str, seed: int, trials: int, virtual: str | None) -> dict[str, Any]:
    """Run one Legroom study. The study gets the free memory as an argument, because some containers do not show other
    processes."""
    if virtual:
        gpus = virtual_gpus(virtual)
    else:
        gpus = [replace(real_gpus()[0], memory=ROOM, used_by_others=0, machine="this one")]

    def run(folder: Path, clock: Clock) -> Any:
        job = TuneJob(
            function=TrainFunction.of(FUNCTION), space=read_space(space), metric="loss", mode="min", search=search,
            trials=trials, gpus=gpus, seed=seed, folder=folder,
        )  # fmt: skip
        return run_job(job, LocalEngine(), resume=False, callbacks=[clock])

    return legroom_row(run)


def run_plain(
    space: Any, search: str, seed: int, trials: int, at_once: int, virtual: str | None
) -> dict[str, Any]:
    """Run one study that does not consider memory."""
    searcher = make_searcher(search, read_space(space), "min", seed)
    began = time.perf_counter()
    trials_run: list[dict[str, Any]] = []
    running: dict[Connection, int] = {}
    while running or len(trials_run) < trials:
        while len(running) < at_once and len(trials_run) < trials:
            config = searcher.propose(len(trials_run))
            assert config is not None
            running[_started(config, virtual)] = len(trials_run)
            now = time.perf_counter() - began
            trials_run.append(
                {
                    "lost": False,
                    "ended": False,
                    "seconds": -now,
                    "losses": [],
                    "split": False,
                    "config": config,
                }
            )
        for pipe, message in _received(list(running)):
            now, number = time.perf_counter() - began, running[pipe]
            trial = trials_run[number]
            if isinstance(message, float):
                trial["losses"].append([now, message])
                continue
            del running[pipe]
            trial.update(ended=True, lost=message == "out of memory", seconds=trial["seconds"] + now)
            if message not in ("out of memory", "done"):
                sys.exit(f"a trial failed for another reason than memory: {message}")
            last = None if trial["lost"] else trial["losses"][-1][1]
            searcher.learn(number, trial["config"], Result(last))
    return {
        "trials": trials_run,
        "proposed": [trial["config"] for trial in trials_run],
        "rejected": 0,
        "ooms": sum(trial["lost"] for trial in trials_run),
        "seconds": time.perf_counter() - began,
    }


def _started(config: dict[str, Any] | None, virtual: str | None) -> Connection:
    ours, theirs = FORK_SERVER.Pipe()
    FORK_SERVER.Process(target=_trial, args=(config, virtual, theirs), daemon=True).start()
    theirs.close()
    return ours


def _received(pipes: list[Connection]) -> Iterator[tuple[Connection, Any]]:
    for pipe in wait(pipes):
        assert isinstance(pipe, Connection)
        try:
            yield pipe, pipe.recv()
        except EOFError:
            yield pipe, "its process died"


def _trial(config: dict[str, Any] | None, virtual: str | None, pipe: Connection) -> None:
    """Run the process of one trial, which sends its losses and then its result."""
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
