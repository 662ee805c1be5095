"""Legroom on a system without the POSIX functions that Windows lacks, such as fork and signals.

`tests/data/without_posix` removes these functions from a Python process and from the processes that it starts.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import legroom

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="other systems lack the functions themselves"),
]

FOLDER = Path(__file__).parents[1] / "data" / "without_posix"

TRAINING = """
import os
import torch

os.makedirs("results", exist_ok=True)
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    open("results/log.txt", "a").write(f"{step}\\n")
"""

PROGRAM = """
import importlib, os, pkgutil, sys
import torch

assert not hasattr(os, "fork")

import legroom

for module in pkgutil.walk_packages(legroom.__path__, "legroom."):
    name = module.name.rpartition(".")[2]
    is_adapter = "ray" in module.name or name in ("lightning", "transformers", "accelerate")  # of a slow library
    if name not in ("__main__", "sitecustomize") and not is_adapter:
        importlib.import_module(module.name)

from legroom.cli import main
from legroom.gpus.catalog import find_gpu
from legroom.observe.script import Script
from legroom.predict.tracing.script import TracedScript
from legroom.predict.tracing.worker_process import start_tracing

process = start_tracing(Script("train.py"), find_gpu("1GiB"))
for command in ("lint train.py", "explain LG700", "monitor --once", "launch --help"):
    assert main(command.split()) == 0, command
with TracedScript(process, find_gpu("1GiB")) as traced:
    assert traced.trace().steps == 2
assert not os.path.exists("results"), "a trace changes no files"
model = torch.nn.Linear(64, 64)
assert legroom.max_batch(model, torch.zeros(4, 64), gpu="1GiB") > 4
assert main("run --gpu 1GiB --output run.legroom train.py".split()) == 0
assert main("report run.legroom".split()) == 0
assert main("diff run.legroom run.legroom".split()) == 0
print("all commands ended")
"""


def test_modules_and_commands_work_without_posix_functions(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    sources = Path(legroom.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(FOLDER), str(sources)])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert "all commands ended" in done.stdout
    assert (tmp_path / "results" / "log.txt").read_text() == "0\n1\n2\n3\n", "the run writes its files once"
