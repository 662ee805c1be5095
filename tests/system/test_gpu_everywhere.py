"""A `--gpu` value describes the same GPU in every command and function that accepts it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

import legroom
from legroom.cli import main
from legroom.gpus.catalog import find_gpu
from legroom.units import GiB, MiB

pytestmark = pytest.mark.filterwarnings("ignore")

SCRIPT = """
import sys
import torch

properties = torch.cuda.get_device_properties(0)
found = (torch.cuda.mem_get_info()[0], properties.total_memory, *torch.cuda.get_device_capability())
assert list(map(str, found)) == sys.argv[1:], found
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch in torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=8):
    model(batch.cuda()).sum().backward()
    optimizer.step()
"""
TRAIN = """
import torch

def train(config, trial):
    properties = torch.cuda.get_device_properties(0)
    found = (torch.cuda.mem_get_info()[0], properties.total_memory, *torch.cuda.get_device_capability())
    assert " ".join(map(str, found)) == config["expected"], found
    trial.report(loss=0.0)
"""


@dataclass(frozen=True)
class GpuProperties:
    """The memory and compute capability that a script sees on a GPU."""

    usable: int
    total: int
    capability: tuple[int, int]

    @property
    def words(self) -> list[str]:
        return list(map(str, (self.usable, self.total, *self.capability)))


T4 = find_gpu("t4")
EXPECTED = {
    "8GiB": GpuProperties(8 * GiB, 8 * GiB, (8, 0)),
    "8GiB:sm90": GpuProperties(8 * GiB, 8 * GiB, (9, 0)),
    "t4": GpuProperties(T4.total - 400 * MiB, T4.total, (7, 5)),
}


@pytest.fixture(params=EXPECTED)
def gpu(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Runs `legroom VERB --gpu GPU OPTIONS train.py` in this process, and returns the exit code and standard output."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)

    def command(verb: str, gpu: str, *options: str) -> tuple[int, str]:
        code = main([verb, "--gpu", gpu, *options, "train.py", *EXPECTED[gpu].words])
        return code, capfd.readouterr().out

    return command


class TracedStep:
    """The properties that a traced step saw. This is a class because tracing does not copy classes."""

    properties: GpuProperties | None = None


def read_properties() -> GpuProperties:
    usable, total = torch.cuda.mem_get_info()
    return GpuProperties(usable, total, torch.cuda.get_device_capability())


def step(batch: torch.Tensor) -> None:
    if TracedStep.properties is None:
        reserved = torch.cuda.memory_reserved()
        seen = read_properties()
        TracedStep.properties = GpuProperties(seen.usable + reserved, seen.total, seen.capability)
    (batch.requires_grad_() * 2).sum().backward()


@pytest.mark.parametrize("function", [legroom.estimate, legroom.max_batch, legroom.plan])
def test_functions_that_trace_a_step_use_the_given_gpu(function: Callable[..., object], gpu: str) -> None:
    TracedStep.properties = None
    function(step, torch.zeros(8, 8), gpu=gpu)
    assert TracedStep.properties == EXPECTED[gpu]


def test_virtual_gpu_uses_the_given_gpu(gpu: str) -> None:
    with legroom.VirtualGPU(gpu):
        assert read_properties() == EXPECTED[gpu]
    with legroom.VirtualGPU(f"{gpu},{gpu}"):
        assert torch.cuda.device_count() == 2
        assert torch.cuda.get_device_capability(1) == EXPECTED[gpu].capability


def test_run_uses_the_given_gpu(gpu: str, command) -> None:
    assert command("run", gpu)[0] == 0


def test_estimate_uses_the_given_gpu(gpu: str, command) -> None:
    code, output = command("estimate", gpu, "--format", "json")
    assert code == 0
    answer = json.loads(output)
    assert (answer["gpu"], answer["capacity_bytes"]) == (gpu, EXPECTED[gpu].total)
    context = answer["peak_device_bytes"] - answer["peak_reserved_bytes"]
    assert answer["capacity_bytes"] - context == EXPECTED[gpu].usable


@pytest.mark.parametrize("gpu", ["t4"])
@pytest.mark.parametrize("option", ["--watch", "--dry-run"])
def test_launch_uses_the_given_gpu(option: str, gpu: str, command) -> None:
    assert command("launch", gpu, option, "--format", "json")[0] == 0


@pytest.mark.parametrize("gpu", ["t4"])
def test_tune_uses_the_given_gpu(gpu: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    study = legroom.tune(
        f"{tmp_path / 'train.py'}:train",
        {"expected": [" ".join(EXPECTED[gpu].words)]},
        metric="loss",
        engine="local",
        gpu=gpu,
        search="grid",
        storage=tmp_path / "study",
    )
    assert study.best_trial.value("loss", "min") == 0.0


def test_a_script_on_a_t4_has_no_bfloat16() -> None:
    with legroom.VirtualGPU("t4"):
        assert not torch.cuda.is_bf16_supported(including_emulation=False)
        assert torch.cuda.get_device_properties(0).multi_processor_count == 40
        assert legroom.precision("auto").dtype is torch.float16
    with legroom.VirtualGPU("rtx4090"):
        assert torch.cuda.is_bf16_supported(including_emulation=False)


def test_an_estimate_agrees_with_a_run_of_the_largest_batch() -> None:
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
    largest = legroom.max_batch(model, torch.zeros(64, 256), gpu="64MiB")
    assert largest is not None

    def train(size: int) -> None:
        copy = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)).cuda()
        optimizer = torch.optim.AdamW(copy.parameters())
        batch = torch.zeros(size, 256).cuda()
        for _ in range(2):
            optimizer.zero_grad()
            copy(batch).float().mean().backward()
            optimizer.step()

    with legroom.VirtualGPU("64MiB"):
        train(largest)
