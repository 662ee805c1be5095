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


CARRIED_STATE = """
import torch
model = torch.nn.RNN(64, 512, batch_first=True).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
state = torch.zeros(1, 32, 512, device="cuda")
for _ in range(40):
    output, state = model(torch.randn(32, 40, 64, device="cuda"), state)
    optimizer.zero_grad()
    output.mean().backward(retain_graph=True)
"""


def test_json_at_the_end_of_python_has_the_advice_of_the_linter(write, legroom_in_new_interpreter):
    legroom = legroom_in_new_interpreter  # Python cannot import some modules while it exits
    document = json.loads(legroom("run", "--gpu", "64MiB", "--format", "json", write(CARRIED_STATE)).stdout)
    assert (document["oom"]["advice"][0]["code"], document["oom"]["advice"][0]["line"]) == ("LG104", 7)
    assert json.loads(legroom("report", "--format", "json", "train.legroom").stdout) == document


def test_successful_run_is_printed_as_json(write, legroom):
    done = legroom("run", "--gpu", "64MiB", "--format", "json", write("print('hello')"))
    document = json.loads(done.stdout)
    assert done.stderr == "hello\n"
    assert (document["exit_code"], document["oom"], document["peak_allocated_bytes"]) == (0, None, 0)
