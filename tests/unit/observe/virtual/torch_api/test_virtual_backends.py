"""CUDA libraries: calls have no effect if possible, and raise a clear error otherwise."""

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from virtual_host import virtual_gpus

from legroom.errors import Unsupported
from legroom.units import GiB

Q = torch.linspace(-1, 1, 256).view(1, 2, 8, 16)


@pytest.fixture
def host() -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with virtual_gpus(GiB) as host:
            yield host


def test_cudnn_is_available_and_accepts_no_tensor(host: Any) -> None:
    assert torch.backends.cudnn.is_available()
    assert torch.backends.cudnn.version() >= 90000
    assert not torch.backends.cudnn.is_acceptable(Q)
    with torch.backends.cudnn.flags(enabled=False, benchmark=True):
        assert torch.backends.cudnn.benchmark
    assert not torch.backends.cudnn.benchmark


def test_an_rnn_runs_without_cudnn(host: Any) -> None:
    net = torch.nn.LSTM(4, 4)
    for parameter in net.parameters():
        host.put(parameter.data)
    net.flatten_parameters()
    assert net(torch.zeros(3, 2, 4))[0].shape == (3, 2, 4)


def test_precision_flags_can_be_set(host: Any) -> None:
    before = torch.backends.cuda.matmul.allow_tf32, torch.get_float32_matmul_precision()
    try:
        torch.backends.cuda.matmul.allow_tf32 = True
        assert torch.backends.cuda.matmul.allow_tf32
        torch.set_float32_matmul_precision("high")
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before[0]
        torch.set_float32_matmul_precision(before[1])


@pytest.mark.parametrize(
    "kernel",
    [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH],
)
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_any_attention_kernel_can_be_selected(host: Any, kernel: SDPBackend, dropout: float) -> None:
    with sdpa_kernel(kernel):
        assert F.scaled_dot_product_attention(Q, Q, Q, dropout_p=dropout).shape == Q.shape
        assert torch.backends.cuda.math_sdp_enabled() == (kernel == SDPBackend.MATH)
    assert torch.backends.cuda.math_sdp_enabled()


def test_the_selected_attention_kernels_remain_after_the_virtual_gpu() -> None:
    with virtual_gpus(GiB):
        torch.backends.cuda.enable_math_sdp(False)
        assert not torch.backends.cuda.math_sdp_enabled()
    assert not torch.backends.cuda.math_sdp_enabled()
    torch.backends.cuda.enable_math_sdp(True)


def test_nvtx_ranges_can_be_nested(host: Any) -> None:
    nvtx = torch.cuda.nvtx
    assert [nvtx.range_push("outer"), nvtx.range_push("inner")] == [0, 1]
    assert [nvtx.range_pop(), nvtx.range_pop()] == [1, 0]
    nvtx.range_end(nvtx.range_start("span"))
    nvtx.mark("here")
    with nvtx.range("step {}", 3):
        pass


@pytest.mark.parametrize("activities", [["CPU", "CUDA"], ["CUDA"], None])
def test_a_profile_of_cuda_profiles_the_cpu(host: Any, activities: list[str] | None) -> None:
    from torch.profiler import ProfilerActivity, profile

    chosen = None if activities is None else [getattr(ProfilerActivity, name) for name in activities]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with profile(activities=chosen) as profiled:
            _ = Q @ Q.transpose(-1, -2)
    assert "aten::matmul" in profiled.key_averages().table(sort_by="cpu_time_total")


def test_a_cuda_graph_raises_one_clear_error(host: Any) -> None:
    with pytest.raises(Unsupported, match="virtual GPU does not support CUDA graphs"):
        torch.cuda.CUDAGraph()
    with pytest.raises(Unsupported, match="virtual GPU does not support CUDA graphs"):
        torch.cuda.make_graphed_callables(torch.nn.Linear(2, 2), (torch.zeros(2, 2),))
    with pytest.raises(Unsupported, match="virtual GPU does not support CUDA graphs"):
        torch.cuda.graph(None)


def test_a_private_pool_raises_one_clear_error(host: Any) -> None:
    with pytest.raises(Unsupported, match="does not support private memory pools"):
        torch.cuda.MemPool()


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_a_compiled_function_stays_eager_and_the_warning_names_the_line() -> None:
    with (
        virtual_gpus(GiB),
        pytest.warns(UserWarning, match="`torch.compile` has no effect on a virtual GPU") as caught,
    ):
        assert torch.compile(double) is double
    assert [warning.filename for warning in caught] == [__file__]


def test_every_form_of_compile_is_eager_with_one_warning() -> None:
    with virtual_gpus(GiB), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert torch.compile(mode="max-autotune")(double) is double
        model = torch.nn.Linear(2, 2)
        model.compile()
        assert model(torch.zeros(1, 2)).shape == (1, 2)
    assert len(caught) == 1


@pytest.mark.filterwarnings("ignore:`torch.compile` has no effect on a virtual GPU")
def test_a_compiled_module_is_wrapped_as_torch_wraps_it() -> None:
    with virtual_gpus(GiB):
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout())
        compiled: Any = torch.compile(model)
        assert list(compiled.state_dict()) == ["_orig_mod.0.weight", "_orig_mod.0.bias"]
        assert [name for name, _ in compiled.named_parameters()] == ["_orig_mod.0.weight", "_orig_mod.0.bias"]
        compiled.eval().extra = 3
        assert (model.training, model.extra) == (False, 3)
        assert compiled._orig_mod is model
        assert len(compiled) == 2
        assert torch.equal(copy.deepcopy(compiled)(torch.ones(1, 2)), model(torch.ones(1, 2)))
        called = []
        compiled.register_forward_hook(lambda *_: called.append(True))
        compiled(torch.ones(1, 2))
        assert called == [True]


def test_compile_with_disable_does_not_warn(host: Any) -> None:
    assert torch.compile(len, disable=True) is len
    torch.compiler.cudagraph_mark_step_begin()


def test_nccl_is_unavailable_without_a_warning(host: Any) -> None:
    assert not torch.cuda.nccl.is_available([])
