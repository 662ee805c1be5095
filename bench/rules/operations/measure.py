"""Records the temporary memory of each operation on a real GPU. Needs a GPU, torch, torchvision and transformers, not
Legroom.

    python -m bench.rules.operations.measure operations OUT [--jobs 4] [--only WORD]     the operations of operation_list.py
    python -m bench.rules.operations.measure cases OUT --cases KEY,KEY [--jobs 4]        two steps of training cases

The program writes OUT/<what>-<part>.jsonl.gz with one line per operation or case: the bytes allocated (+) and freed
(-) in order, and the operations with their arguments. A dispatch mode marks where operations begin and end. With this
mode, gradients are accumulated out of place. To record without the mode, use `bench.accuracy.measure_cases histories`.
"""

import gc
import gzip
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from bench.accuracy.cases.build_step import build
from bench.accuracy.cases.case import Case
from bench.accuracy.measure_cases import environment, selected
from bench.lib.command_line import command_line
from bench.rules.operations.operation_list import OPERATIONS
from bench.rules.recordings import write_versions


def main(argv: list[str]) -> int:
    parser = command_line(__doc__)
    parser.add_argument("what", choices=["operations", "cases"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--cases", default="reference", help="a set, or keys separated by commas")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--part", default="", help="i/n: only every n-th operation or case, from i")
    parser.add_argument("--only", default="", help="only operations whose names contain this word")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.part:
        return record(options.out, options.what, options.cases, options.part, options.only)
    write_versions(options.out)
    workers = [
        subprocess.Popen(
            [
                sys.executable, "-m", "bench.rules.operations.measure", options.what, str(options.out), "--cases", options.cases,
                "--only", options.only, "--part", f"{i}/{options.jobs}",
            ],
            env=environment(),
        )
        for i in range(options.jobs)
    ]  # fmt: skip
    return max(worker.wait() for worker in workers)


def record(out: Path, what: str, names: str, part: str, only: str) -> int:
    index, count = map(int, part.split("/"))
    torch.cuda.memory._record_memory_history(max_entries=5_000_000, context=None)
    with gzip.open(out / f"{what}-{index}.jsonl.gz", "wt") as file:
        if what == "operations":
            for name, call in [one for one in OPERATIONS() if only in one[0]][index::count]:
                write(file, name, lambda call=call: call())
        else:
            for case in selected(names)[index::count]:
                write(file, case.key, lambda case=case: two_steps(case))
    return 0


def two_steps(case: Case) -> None:
    _, _, step = build(case, "cuda")
    step()
    step()


def write(file: Any, name: str, action: Any) -> None:
    began = time.perf_counter()
    torch.cuda.memory._record_memory_history(enabled=None)
    torch.cuda.memory._record_memory_history(max_entries=5_000_000, context=None)
    row: dict[str, Any] = {"name": name}
    earlier = len(history())
    borders = OperationBorders()
    try:
        with borders:
            action()
        torch.cuda.synchronize()
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {str(error)[:200]}"
    row |= borders.split(history()[earlier:])
    row["seconds"] = round(time.perf_counter() - began, 3)
    file.write(json.dumps(row) + "\n")
    file.flush()
    del borders
    if torch.cuda.memory_reserved() > 12 << 30:  # several processes share the device
        gc.collect()
        torch.cuda.empty_cache()


def history() -> list[int]:
    """Return the bytes allocated (+) and freed (-) so far, in order."""
    return [
        event["size"] if event["action"] == "alloc" else -event["size"]
        for event in torch.cuda.memory._snapshot()["device_traces"][0]
        if event["action"] in ("alloc", "free_completed")
    ]


def describe(value: Any) -> Any:
    """Describe an argument. A tensor is described by dtype, shape and non-contiguous strides. Other values are
    returned unchanged."""
    if isinstance(value, torch.Tensor):
        text = f"{str(value.dtype)[6:]}{list(value.shape)}"
        if not value.is_contiguous():
            text += f"s{list(value.stride())}"
        return text if value.is_cuda else f"host {text}"
    if isinstance(value, list | tuple):
        short = [describe(item) for item in value[:6]]
        return [*short, f"+{len(value) - 6}"] if len(value) > 6 else short
    return value if isinstance(value, int | float | bool | str | None) else str(value)


class OperationBorders(TorchDispatchMode):
    """Records the positions in the allocator's history at which each operation begins and ends.

    The position is the allocator's own count of allocations and frees. Reading this count allocates no memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.origin = self.position()
        self.marks: list[tuple[str, int, int]] = []

    @staticmethod
    def position() -> int:
        counts = torch.cuda.memory_stats_as_nested_dict().get("allocation", {}).get("all", {})
        return int(counts.get("allocated", 0) + counts.get("freed", 0))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        begin = self.position()
        out = func(*args, **kwargs)
        end = self.position()
        if end != begin:
            call = {"args": describe(list(args)), "out": describe(list(tree_iter(out)))}
            if kwargs:
                call["kwargs"] = {name: describe(value) for name, value in kwargs.items()}
            self.marks.append((json.dumps([str(func), call]), begin - self.origin, end - self.origin))
        return out

    def split(self, events: list[int]) -> dict[str, Any]:
        """Return the distinct operations, the order in which they ran, and all events.

        Each entry of `order` is [operation, events since the previous operation, events inside the operation]."""
        names: dict[str, int] = {}
        order = []
        last = 0
        for text, begin, end in self.marks:
            order.append([names.setdefault(text, len(names)), begin - last, end - begin])
            last = end
        return {"ops": [json.loads(text) for text in names], "order": order, "events": events}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
