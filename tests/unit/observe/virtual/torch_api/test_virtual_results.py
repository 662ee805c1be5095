"""Results of operations on a device tensor are on the same device."""

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from legroom import VirtualGPU
from legroom.errors import Unsupported

TensorFunction = Callable[[torch.Tensor, torch.Tensor], Any]
"""A function of a 4×4 matrix with values in (0, 1) and four indices below four."""
MAKERS: dict[str, TensorFunction] = {
    "new of sizes": lambda x, i: x.new(2, 3),
    "new of values": lambda x, i: x.new([1, 2]),
    "new_tensor": lambda x, i: x.new_tensor([1.0]),
    "torch.tensor of a tensor": lambda x, i: torch.tensor(x),
    "zeros_like": lambda x, i: torch.zeros_like(x),
    "randint_like": lambda x, i: torch.randint_like(x, 3),
    "type_as": lambda x, i: torch.ones(2).type_as(x),
    "to another": lambda x, i: torch.ones(2).to(x),
    "nonzero": lambda x, i: x.nonzero(as_tuple=True),
    "unique": lambda x, i: torch.unique(i, return_inverse=True, return_counts=True),
    "one_hot": lambda x, i: F.one_hot(i),
    "multinomial": lambda x, i: torch.multinomial(x, 1),
    "normal": lambda x, i: torch.normal(x, 1.0),
    "cartesian_prod": lambda x, i: torch.cartesian_prod(i, i),
    "meshgrid": lambda x, i: torch.meshgrid(i, i, indexing="ij"),
    "svd": lambda x, i: torch.linalg.svd(x),
    "fft": lambda x, i: torch.fft.fft2(x),
    "stft": lambda x, i: torch.stft(x.flatten(), 4, return_complex=True),
    "pad_sequence": lambda x, i: nn.utils.rnn.pad_sequence([x, x[:2]]),
    "pack_sequence": lambda x, i: nn.utils.rnn.pack_sequence([x, x[:2]]).data,
    "lstm without a state": lambda x, i: nn.LSTM(4, 2).cuda()(x[None])[1],
    "attention": lambda x, i: nn.MultiheadAttention(4, 2).cuda()(x, x, x),
    "sparse": lambda x, i: x.to_sparse(),
    "sparse values and indices": lambda x, i: [x.to_sparse().values(), x.to_sparse().indices()],
    "sparse rows": lambda x, i: x.to_sparse_csr(),
    "dense again": lambda x, i: x.to_sparse().to_dense(),
    "nested": lambda x, i: torch.nested.nested_tensor([x, x]).to_padded_tensor(0.0),
    "nested on the device": lambda x, i: torch.nested.nested_tensor([[1.0]], device="cuda").to_padded_tensor(0),
    "flex attention": lambda x, i: _flex_attention(x[None, None]),
    "distributions": lambda x, i: [
        torch.distributions.Normal(x, 1.0).rsample(),
        torch.distributions.Categorical(x).sample(),
        torch.distributions.Dirichlet(x).sample(),
    ],
    "vmap": lambda x, i: torch.func.vmap(lambda row: row * 2)(x),
    "numbers assigned in vmap": lambda x, i: torch.func.vmap(_with_ones)(torch.stack([i, i])),
    "jacobian": lambda x, i: torch.func.jacrev(torch.sin)(x[0]),
    "gradient": lambda x, i: torch.autograd.grad((x.requires_grad_() * 2).sum(), x),
    "zeros that the engine makes": lambda x, i: torch.autograd.grad(x.requires_grad_().unbind()[0].sum(), x),
    "deepcopy": lambda x, i: copy.deepcopy(nn.Linear(2, 2).cuda()).weight,
    "pickle": lambda x, i: pickle.loads(pickle.dumps(x)),
    "ctc": lambda x, i: F.ctc_loss(x[:, None].log_softmax(2), i[None, :1] * 0 + 1, torch.tensor([4]), torch.tensor([1])),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def gpu() -> Iterator[None]:
    with VirtualGPU("1GiB"):
        yield


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_the_result_is_on_the_device(maker: TensorFunction) -> None:
    made = list(_tensors(maker(torch.rand(4, 4, device="cuda"), torch.randint(0, 4, (4,), device="cuda"))))
    assert made
    assert {str(tensor.device) for tensor in made} == {"cuda:0"}


def test_a_tensor_from_a_list_of_device_scalars_is_on_the_host() -> None:
    assert torch.tensor(list(torch.ones(3, device="cuda"))).device.type == "cpu"


def test_optimizers_group_parameters_by_virtual_device() -> None:
    tensors = [torch.ones(1, device="cuda"), torch.ones(1), torch.ones(2, device="cuda")]
    groups = torch.utils._foreach_utils._group_tensors_by_device_and_dtype([tensors], with_indices=True)
    assert {str(device): indices for (device, _), (_, indices) in groups.items()} == {
        "cuda:0": [0, 2],
        "cpu": [1],
    }


def test_evaluation_uses_the_fast_path_as_on_the_cpu() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        expected = layer(x)
        assert torch.equal(layer.cuda()(x.cuda()).cpu(), expected)


def test_a_scripted_model_loads_to_the_device(tmp_path: Any) -> None:
    torch.jit.save(torch.jit.script(nn.Linear(2, 2)), tmp_path / "model.pt")
    model = torch.jit.load(tmp_path / "model.pt", map_location="cuda:0")
    assert model(torch.ones(1, 2, device="cuda")).device == torch.device("cuda:0")


def test_a_tensor_is_printed_like_a_cuda_tensor() -> None:
    x = torch.ones(2, device="cuda", dtype=torch.float64, requires_grad=True)
    assert repr(x) == "tensor([1., 1.], device='cuda:0', dtype=torch.float64, requires_grad=True)"
    assert repr(x[0].detach()) == "tensor(1., device='cuda:0', dtype=torch.float64)"


def test_resizing_a_storage_to_zero_frees_its_memory() -> None:
    x = torch.ones(1 << 20, device="cuda")
    held = torch.cuda.memory_allocated()
    x.untyped_storage().resize_(0)
    assert held - torch.cuda.memory_allocated() == 1 << 22
    x.untyped_storage().resize_(1 << 22)
    assert torch.cuda.memory_allocated() == held


def test_a_custom_op_for_cuda_runs() -> None:
    @torch.library.custom_op("legroom_tests::twice", mutates_args=(), device_types="cuda")
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    doubled = twice(torch.ones(2, device="cuda"))
    assert (doubled.device.type, doubled.sum().item()) == ("cuda", 4)


def test_exporting_a_model_is_rejected_with_the_remedy() -> None:
    with pytest.raises(Unsupported, match=r"model\.cpu\(\)"):
        torch.export.export(nn.Linear(2, 2).cuda(), (torch.ones(1, 2, device="cuda"),))


def _with_ones(index: torch.Tensor) -> torch.Tensor:
    made = index.new_zeros(4, 4)
    made[torch.arange(4, device=index.device), index] = 1
    return made


def _flex_attention(x: torch.Tensor) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention(x, x, x)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
