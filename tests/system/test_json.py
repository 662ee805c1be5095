"""`legroom run --format json` prints one document to stdout and nothing else."""

import json
from pathlib import Path

SOURCE = """
import atexit, os, torch
print("from python")
os.system("echo from the shell")
atexit.register(print, "from an exit handler")
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    optimizer.zero_grad()
    model(torch.randn(64, 256, device="cuda")).sum().backward()
    optimizer.step()
big = torch.zeros(64 << 20, device="cuda")
"""
KEYS = [
    "schema",
    "exit_code",
    "steps",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "oom",
    "leaks",
    "capture",
]
OOM_KEYS = ["file", "line", "op", "requested_bytes", "by_category", "top", "holders", "advice"]


def test_failed_run_is_printed_as_json(write, legroom, tmp_path: Path):
    done = legroom("run", "--gpu", "64MiB", "--format", "json", write(SOURCE))
    document = json.loads(done.stdout)
    assert done.returncode == document["exit_code"] == 1
    for text in (
        "from python\n",
        "from the shell\n",
        "from an exit handler\n",
        "torch.OutOfMemoryError: CUDA out of",
    ):
        assert text in done.stderr
    assert list(document)[: len(KEYS)] == KEYS
    assert (document["steps"], document["capture"], document["leaks"]) == (6, "train.legroom", [])
    oom = document["oom"]
    assert list(oom)[: len(OOM_KEYS)] == OOM_KEYS
    assert oom["file"] == str(tmp_path / "train.py")
    assert (oom["line"], oom["op"], oom["requested_bytes"]) == (12, "aten.zeros", 256 << 20)
    assert sum(oom["by_category"].values()) == oom["allocated_bytes"]
    assert {"file", "line", "bytes", "category", "module"} <= set(oom["top"][0])
    assert oom["holders"][0]["path"].startswith("model")
    assert oom["advice"][0]["code"] == "LG601"
    again = legroom("report", "--format", "json", "train.legroom")
    assert json.loads(again.stdout) == document


def test_successful_run_is_printed_as_json(write, legroom):
    done = legroom("run", "--gpu", "64MiB", "--format", "json", write("print('hello')"))
    document = json.loads(done.stdout)
    assert done.stderr == "hello\n"
    assert (document["exit_code"], document["oom"], document["peak_allocated_bytes"]) == (0, None, 0)
