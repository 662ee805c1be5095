"""Tensor types and other functions of torch.cuda that create or move tensors, on a complete virtual GPU."""

import io
import warnings
from collections.abc import Iterator

import pytest
import torch

from legroom.observe.virtual.gpu import VirtualGPU


@pytest.fixture
def gpu() -> Iterator[VirtualGPU]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with VirtualGPU("1GiB,1GiB") as gpu:
            yield gpu


def test_tensor_types_create_tensors_on_the_gpu(gpu: VirtualGPU) -> None:
    assert torch.cuda.FloatTensor(2, 3).shape == (2, 3)
    made = torch.cuda.LongTensor([1, 2])
    assert (made.dtype, made.device) == (torch.int64, torch.device("cuda", 0))
    assert made.tolist() == [1, 2]
    assert torch.cuda.HalfTensor().numel() == 0
    assert torch.cuda.FloatTensor(made).tolist() == [1.0, 2.0]
    assert torch.cuda.FloatTensor(torch.Size([2, 3])).shape == (2, 3)
    with torch.cuda.device(1):
        assert torch.cuda.ByteTensor(4).device.index == 1


def test_tensor_types_recognize_tensors(gpu: VirtualGPU) -> None:
    on_gpu = torch.zeros(2, device="cuda")
    assert isinstance(on_gpu, torch.cuda.FloatTensor)
    assert not isinstance(on_gpu, torch.cuda.LongTensor)
    assert not isinstance(torch.zeros(2), torch.cuda.FloatTensor)


def test_training_with_a_grad_scaler_has_the_results_of_the_cpu(gpu: VirtualGPU) -> None:
    def train(device: str) -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(device, init_scale=128.0)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            x = torch.randn(16, 8).to(device)
            with torch.autocast(device_type=x.device.type, dtype=torch.bfloat16):
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        return losses

    assert train("cuda") == train("cpu")


def test_a_model_saved_on_one_gpu_is_loaded_on_another(gpu: VirtualGPU) -> None:
    model = torch.nn.Linear(4, 4).cuda()
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, map_location="cuda:1")
    assert {tensor.device for tensor in loaded.values()} == {torch.device("cuda", 1)}
    model.load_state_dict(loaded)
    assert model.weight.device == torch.device("cuda", 0)


def test_a_generator_on_the_gpu_creates_tensors_on_the_gpu(gpu: VirtualGPU) -> None:
    generator = torch.Generator(device="cuda").manual_seed(0)
    made = torch.randn(3, device="cuda", generator=generator)
    assert made.is_cuda
    assert torch.equal(made.cpu(), torch.randn(3, generator=torch.Generator().manual_seed(0)))


def test_a_batch_is_split_over_the_gpus(gpu: VirtualGPU) -> None:
    seen: list[torch.device] = []

    class Remembering(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(x.device)
            return super().forward(x)

    torch.manual_seed(0)
    module = Remembering(4, 2).cuda()
    x = torch.randn(6, 4)
    out = torch.nn.DataParallel(module)(x.cuda())
    out.sum().backward()
    assert seen == [torch.device("cuda", 0), torch.device("cuda", 1)]
    assert out.device == torch.device("cuda", 0)
    assert torch.allclose(out.cpu(), torch.nn.functional.linear(x, module.weight.cpu(), module.bias.cpu()))
    assert torch.allclose(module.weight.grad.cpu(), x.sum(0).expand(2, 4))


def test_a_batch_on_the_host_is_split_over_the_gpus(gpu: VirtualGPU) -> None:
    module = torch.nn.DataParallel(torch.nn.Linear(4, 2).cuda())
    assert module(torch.randn(6, 4)).device == torch.device("cuda", 0)


def test_a_default_tensor_type_sets_data_type_and_device(
    gpu: VirtualGPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[object] = []
    monkeypatch.setattr(torch, "set_default_device", chosen.append)
    monkeypatch.setattr(torch, "set_default_dtype", chosen.append)
    torch.set_default_tensor_type("torch.cuda.DoubleTensor")
    torch.set_default_tensor_type(torch.cuda.FloatTensor)
    assert chosen == [torch.float64, "cuda", torch.float32, "cuda"]


@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_a_model_can_be_moved_with_a_device_keyword(gpu: VirtualGPU, dtype: torch.dtype | None) -> None:
    model = torch.nn.BatchNorm1d(4)
    model.to(device=torch.device("cuda"), dtype=dtype)
    held = [*model.parameters(), *model.buffers()]
    assert {str(tensor.device) for tensor in held} == {"cuda:0"}
    assert model.weight.dtype == (dtype or torch.float32)


def test_a_model_can_be_moved_with_a_device_index(gpu: VirtualGPU) -> None:
    model = torch.nn.Linear(2, 2)
    assert model.to(1).weight.device == torch.device("cuda", 1)
    assert model.to(device=0).weight.device == torch.device("cuda", 0)
