import pytest
import torch
import torch.nn.functional as F
from traced_plans import traced

from legroom.observe.cuda_rules import autocast


def cast(run, dtype=torch.bfloat16):
    """Return the dtype of `run(x)` inside an autocast region, for a float32 image."""
    with traced(), torch.autocast("cpu", dtype=dtype):
        return run(torch.empty(2, 8, 16, 16)).dtype


@pytest.mark.parametrize(
    "run",
    [
        lambda x: x @ x,
        lambda x: F.conv2d(x, torch.empty(4, 8, 3, 3)),
        lambda x: F.linear(x, torch.empty(4, 16)),
        lambda x: torch.einsum("bchw,bchv->bcwv", x, x),
        lambda x: torch.baddbmm(x[0], x[0], x[0]),
        lambda x: F.scaled_dot_product_attention(x, x, x),
    ],
)
def test_matrix_products_run_in_the_lower_precision(run):
    assert cast(run) == torch.bfloat16


@pytest.mark.parametrize(
    "run",
    [
        lambda x: F.softmax(x.bfloat16(), -1),
        lambda x: F.layer_norm(x.bfloat16(), (16,)),
        lambda x: F.group_norm(x.bfloat16(), 2),
        lambda x: x.bfloat16().sum(1),
        lambda x: x.bfloat16().norm(),
        lambda x: torch.ops.aten.norm(x.bfloat16(), 2, [1]),
        lambda x: F.pairwise_distance(x.bfloat16(), x.bfloat16()),
        lambda x: x.bfloat16().exp(),
        lambda x: x.bfloat16().pow(2),
        lambda x: F.mse_loss(x.bfloat16(), x.bfloat16()),
        lambda x: F.cross_entropy(x.bfloat16(), torch.zeros(2, 16, 16, dtype=torch.long)),
        lambda x: F.interpolate(x.bfloat16(), scale_factor=2),
        lambda x: torch.cumsum(x.bfloat16(), 0),
    ],
)
def test_precision_sensitive_operations_run_in_float32(run):
    assert cast(run) == torch.float32


@pytest.mark.parametrize(
    "run", [lambda x: x.bfloat16() + 1, lambda x: F.relu(x.bfloat16()), lambda x: F.gelu(x.bfloat16())]
)
def test_other_operations_keep_the_dtype_of_their_inputs(run):
    assert cast(run) == torch.bfloat16


def test_the_autocast_list_of_the_cpu_is_not_used():
    """3D pooling runs in float32 on the CPU, but not on CUDA."""
    assert cast(lambda x: F.avg_pool3d(x.bfloat16().unsqueeze(0), 2)) == torch.bfloat16


def test_an_explicit_dtype_is_kept():
    assert cast(lambda x: x.bfloat16().sum(1, dtype=torch.bfloat16)) == torch.bfloat16


def test_arguments_of_different_precision_use_the_widest():
    assert cast(lambda x: torch.addcmul(x.bfloat16(), x, x.bfloat16())) == torch.float32


def test_softmax_converts_float16_to_float32_itself():
    with traced() as log, torch.autocast("cpu", dtype=torch.float16):
        F.softmax(torch.empty(4, 16, dtype=torch.float16), -1)

    assert log.names == ["empty", "_softmax"]


def test_a_parameter_is_cast_once_until_the_outermost_region_ends():
    with traced() as log:
        weight = torch.nn.Parameter(torch.empty(16, 16))
        x = torch.empty(4, 16)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            F.linear(x, weight)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                F.linear(x, weight)
            F.linear(x, weight)
        copies = log.names.count("_to_copy")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            F.linear(x, weight)

    assert copies == 3 + 1  # the input each time, the weight once
    assert log.names.count("_to_copy") == copies + 2


def test_the_last_argument_is_cast_first():
    with traced() as log, torch.autocast("cpu", dtype=torch.bfloat16):
        F.linear(torch.empty(4, 8), torch.empty(16, 8), torch.empty(16))

    casts = [shapes for name, _, shapes in log.calls if name == "_to_copy"]
    assert [shape for shape, _ in casts] == [(16,), (16, 8), (4, 8)]


def test_a_disabled_region_casts_nothing():
    with traced(), torch.autocast("cpu", dtype=torch.bfloat16), torch.autocast("cpu", enabled=False):
        assert F.linear(torch.empty(4, 8), torch.empty(16, 8)).dtype == torch.float32


def test_gradients_have_the_dtype_of_their_parameters():
    with traced():
        weight = torch.nn.Parameter(torch.empty(16, 8))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.linear(torch.empty(4, 8), weight).sum()
        loss.backward()

        assert weight.grad.dtype == torch.float32


def test_the_autocast_list_of_the_cpu_is_restored_afterwards():
    with traced():
        pass
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert F.avg_pool3d(torch.ones(1, 1, 4, 4, 4, dtype=torch.bfloat16), 2).dtype == torch.float32


def test_every_operation_of_cudas_autocast_has_a_policy_that_runs():
    """The test also checks that the lists contain only operations that torch registers for CUDA."""
    named = (
        autocast.LOWER | autocast.FLOAT32_RESULT | autocast.WIDEST | set(autocast.NORMS) | autocast.REJECTED
    )
    named_overloads = {
        name for name in named if "Dimname" not in name and "dimname" not in name and "names" not in name
    }

    assert named_overloads <= autocast.cuda_operations()
