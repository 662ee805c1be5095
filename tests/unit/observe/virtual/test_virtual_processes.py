"""Child processes have the virtual GPUs of the program, and tensors that are sent to them stay on their device."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from legroom import VirtualGPU
from legroom.observe.virtual.processes import VARIABLE, inherited_gpus

SCRIPT = """
import json, subprocess, sys
import torch, torch.multiprocessing
from legroom import VirtualGPU

def child(sent, model, answers):
    sent.add_(1)
    devices = [str(sent.device), str(model.weight.device), type(model.weight).__name__]
    answers.put((devices, torch.cuda.memory_allocated(1), torch.full((2,), 7.0, device="cuda:1")))
    answers.get()  # CUDA requires as well that the sender lives until the tensor was received

PROGRAM = '''
import importlib.util, json, sys
before = "torch" in sys.modules
importlib.util.find_spec("torch")  # libraries look for torch before they import it
import torch
devices = torch.cuda.device_count()
device = str(torch.ones(2, device="cuda").device) if devices else "cpu"
print(json.dumps([before, devices, device, hasattr(sys, "customized")]))
'''

if __name__ == "__main__":
    results = {}
    with VirtualGPU("1GiB,2GiB"):
        sent, model = torch.zeros(1024, device="cuda:1"), torch.nn.Linear(2, 2).cuda()
        context = torch.multiprocessing.get_context("spawn")
        answers = context.SimpleQueue()
        process = context.Process(target=child, args=(sent, model, answers))
        process.start()
        program = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
        results["spawned"], results["counted in the child"], received = answers.get()
        results["received"] = [str(received.device), received.tolist()]
        answers.put(None)
        process.join()
        results["written by the child"] = sent[0].item()
        results["program"] = json.loads(program.communicate()[0])
    print(json.dumps(results))
"""


@pytest.mark.slow
def test_spawned_processes_and_started_programs_have_the_virtual_gpus(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    customized = tmp_path / "customized"
    customized.mkdir()
    (customized / "sitecustomize.py").write_text("import sys\nsys.customized = True\n")
    path = os.pathsep.join([str(customized), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "spawned": ["cuda:1", "cuda:0", "Parameter"],
        "counted in the child": 0,
        "received": ["cuda:1", [7.0, 7.0]],
        "written by the child": 1.0,
        "program": [False, 2, "cuda:0", True],
    }


def test_the_environment_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (None, "one", os.pathsep.join(["one", "two"])):
        if path is None:
            monkeypatch.delenv("PYTHONPATH", raising=False)
        else:
            monkeypatch.setenv("PYTHONPATH", path)
        before = dict(os.environ)
        with VirtualGPU("1GiB"):
            assert VARIABLE in os.environ
            assert os.environ["PYTHONPATH"].endswith(path or "inherited")
        assert dict(os.environ) == before


def test_inherited_gpus_keep_their_properties(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with VirtualGPU("8GiB:sm90,t4") as gpu:
        specs = [device.spec for device in gpu.devices]
        assert inherited_gpus() == specs
        for visible, expected in {"1": specs[1:], "1,0": specs[::-1], "0,5,1": specs[:1], "": []}.items():
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
            assert inherited_gpus() == expected
    assert inherited_gpus() == []


def test_a_virtual_gpu_replaces_an_inherited_one() -> None:
    inherited = VirtualGPU("1GiB")
    inherited._is_inherited = True
    inherited.__enter__()
    with VirtualGPU("2GiB") as own:
        assert VirtualGPU._active is own
    assert VirtualGPU._active is None
