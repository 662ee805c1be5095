"""Models that the program traces to TorchScript while Legroom records it."""

import pytest
import torch
from torch import nn

import legroom
from legroom.observe.dispatch.recorder import Recorder
from legroom.observe.graph_traces import is_tracing_graph


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3, padding=1)
        self.positions = nn.Embedding(16, 8)
        self.lstm = nn.LSTM(8, 8, batch_first=True)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        rows = self.convolution(images).mean(2).transpose(1, 2)
        rows = rows + self.positions(torch.arange(rows.shape[1], device=images.device))
        output: torch.Tensor = self.lstm(rows)[0]
        return output


def test_a_traced_model_computes_the_same_on_a_virtual_gpu() -> None:
    with legroom.VirtualGPU("200MiB"):
        model, images = Net().cuda().eval(), torch.randn(2, 3, 16, 16, device="cuda")
        traced = torch.jit.trace(model, images)
        result = traced(images)
        assert result.device == images.device
        assert torch.allclose(result, model(images))


def test_results_of_a_trace_are_on_the_gpu_and_count_as_device_memory() -> None:
    seen: list[tuple[torch.device, int]] = []

    class Observed(nn.Conv2d):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            result = super().forward(batch)
            assert is_tracing_graph()
            seen.append((result.device, torch.cuda.memory_allocated()))
            return result

    with legroom.VirtualGPU("200MiB"):
        batch = torch.randn(1, 3, 64, 64, device="cuda")
        before = torch.cuda.memory_allocated()
        torch.jit.trace(Observed(3, 4, 1).cuda(), batch, check_trace=False)
    device, allocated = seen[0]
    assert device == torch.device("cuda", 0)
    assert allocated - before >= 4 * 64 * 64 * 4


def test_training_continues_after_a_trace() -> None:
    with legroom.VirtualGPU("200MiB"):
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 2)).cuda()
        images = torch.randn(8, 3, 8, 8, device="cuda")
        torch.jit.trace(model, images[:1])
        optimizer = torch.optim.Adam(model.parameters())
        model(images).sum().backward()
        optimizer.step()
        assert model[0].weight.grad is not None
        assert model[0].weight.grad.device.type == "cuda"


def test_a_model_can_be_traced_inside_a_recording() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    with legroom.record() as recording:
        traced = torch.jit.trace(model, torch.randn(1, 3, 8, 8))
    assert recording.peak > 0
    assert traced(torch.randn(1, 3, 8, 8)).shape == (1, 4, 6, 6)


def test_the_trace_functions_are_restored() -> None:
    before = torch.jit.trace, torch.jit.trace_module, torch.jit._get_trace_graph
    recorder = Recorder(lambda event: None, [], host_only=True)
    recorder.attach()
    assert torch.jit.trace is not before[0]
    recorder.detach()
    assert (torch.jit.trace, torch.jit.trace_module, torch.jit._get_trace_graph) == before


def test_the_traced_model_has_the_same_results_as_the_model(recwarn: pytest.WarningsRecorder) -> None:
    with legroom.VirtualGPU("200MiB"):
        torch.jit.trace(nn.Conv2d(3, 4, 3).cuda(), torch.randn(1, 3, 8, 8, device="cuda"))
    assert not [each for each in recwarn if "does not match" in str(each.message)]
