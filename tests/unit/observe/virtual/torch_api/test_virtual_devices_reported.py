"""Everything that reports the device of a tensor reports the virtual one, as CUDA would."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import dlpack as torch_dlpack

from legroom import VirtualGPU

dlpack: Any = torch_dlpack
REPORTS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "storage": (lambda x: str(x.untyped_storage().device), "cuda:1"),
    "storage as a number": (lambda x: x.untyped_storage().get_device(), 1),
    "storage is_cuda": (lambda x: x.untyped_storage().is_cuda, True),
    "typed storage": (lambda x: x.storage().type(), "torch.cuda.FloatStorage"),
    "a copied storage": (lambda x: str(x.untyped_storage().clone().device), "cuda:1"),
    "a storage moved to the host": (lambda x: str(x.untyped_storage().cpu().device), "cpu"),
    "dlpack": (lambda x: tuple(map(int, x.__dlpack_device__())), (2, 1)),
    "imported from dlpack": (lambda x: str(dlpack.from_dlpack(x).device), "cuda:1"),
    "imported from a capsule": (lambda x: str(dlpack.from_dlpack(dlpack.to_dlpack(x)).device), "cuda:1"),
    "imported to the host": (lambda x: str(dlpack.from_dlpack(x, device="cpu").device), "cpu"),
    "array interface": (lambda x: x.__cuda_array_interface__["shape"], (2, 3)),
    "formatted": (lambda x: "device='cuda:1'" in f"{x}", True),
    "shared": (lambda x: x.share_memory_().is_shared(), True),
    "like, on meta": (lambda x: str(torch.empty_like(x, device="meta").device), "meta"),
    "moved to meta": (lambda x: str(x.to("meta").device), "meta"),
    "unpacked lengths": (lambda x: str(_padded(x)[1].device), "cpu"),
    "unpacked sequence": (lambda x: str(_padded(x)[0].device), "cuda:1"),
    "inside grad": (
        lambda x: str(torch.func.grad(lambda y: (y * torch.ones(3, device=y.device)).sum())(x).device),
        "cuda:1",
    ),
}  # fmt: skip


def _padded(x: Any) -> Any:
    packed = nn.utils.rnn.pack_padded_sequence(x[:, None], torch.tensor([2]))
    return nn.utils.rnn.pad_packed_sequence(packed)


@pytest.fixture
def tensor() -> Iterator[Any]:
    with VirtualGPU("1GiB,1GiB"):
        yield torch.ones(2, 3, device="cuda:1")


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("name", REPORTS)
def test_the_virtual_device_is_reported(tensor: Any, name: str) -> None:
    if name == "imported to the host" and "device" not in inspect.signature(dlpack.from_dlpack).parameters:
        pytest.skip("from_dlpack of this torch has no argument `device`")
    report, expected = REPORTS[name]
    assert report(tensor) == expected


def test_numpy_rejects_the_capsule_of_a_device_tensor(tensor: Any) -> None:
    with pytest.raises((BufferError, RuntimeError, TypeError)):
        np.from_dlpack(tensor)
    assert np.from_dlpack(tensor.cpu()).sum() == 6


def test_a_tensor_imported_from_dlpack_shares_memory_that_counts_once(tensor: Any) -> None:
    before = torch.cuda.memory_allocated(1)
    imported = dlpack.from_dlpack(tensor)
    imported.add_(1)
    assert tensor.sum().item() == 12
    assert torch.cuda.memory_allocated(1) == before
    del tensor


def test_a_storage_set_into_a_tensor_keeps_its_device(tensor: Any) -> None:
    storage = tensor.untyped_storage()
    again = torch.tensor([], device=storage.device).set_(storage)
    assert (again.device, again.numel()) == (tensor.device, 6)


def test_fake_tensors_of_the_program_have_the_device_it_names_and_use_no_memory(tensor: Any) -> None:
    before = torch.cuda.memory_allocated()
    with FakeTensorMode() as mode:
        huge = torch.empty(1 << 40, device="cuda")
        model = nn.Linear(3, 3, device="cuda:1")
        result = model(mode.from_tensor(tensor))
        result.sum().backward()
        created = (
            huge,
            huge + 1,
            model.weight,
            result,
            model.weight.grad,
            torch.ones(2),
            torch.ones(2).cuda(),
        )
        devices = [str(each.device) for each in created if each is not None]
        assert devices == ["cuda:0", "cuda:0", "cuda:1", "cuda:1", "cuda:1", "cpu", "cuda:0"]
        with pytest.raises(RuntimeError, match="found at least two devices, cuda:1 and cpu"):
            result + torch.ones(3)
    assert torch.cuda.memory_allocated() == before


class Wrapper(torch.Tensor):
    """A tensor subclass that contains another tensor and has no `__tensor_flatten__`."""

    content: torch.Tensor

    @staticmethod
    def __new__(cls: Any, inner: torch.Tensor) -> Any:
        tensor: Any = torch.Tensor
        made = tensor._make_wrapper_subclass(cls, inner.size(), device=inner.device)
        made.content = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        unwrapped = [arg.content if isinstance(arg, Wrapper) else arg for arg in args]
        return Wrapper(func(*unwrapped, **(kwargs or {})))


def test_a_tensor_inside_a_tensor_of_the_program_is_on_its_device_and_counted(tensor: Any) -> None:
    before = torch.cuda.memory_allocated(1)
    result: Any = Wrapper(tensor) * 2
    assert (str(result.device), str(result.content.device)) == ("cuda:1", "cuda:1")
    assert torch.cuda.memory_allocated(1) > before


def test_a_gradient_on_another_device_than_the_result_is_rejected(tensor: Any) -> None:
    result = tensor.requires_grad_() * 2
    with pytest.raises(RuntimeError, match="expected device cuda:1 but got cpu"):
        result.backward(torch.ones(2, 3))
    result.backward(torch.ones(2, 3, device="cuda:1"))
    assert str(tensor.grad.device) == "cuda:1"
