"""Memory plans of convolutions: recorded workspaces, rules, and the order of allocations."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from traced_plans import scratch_bytes, step_order, traced

from legroom.gpus.catalog import find_gpu
from legroom.observe.cuda_rules.convolution import recorded_table, workspace_rules, workspace_source
from legroom.observe.cuda_rules.convolution.recorded_table import (
    WORKSPACE_KINDS,
    ConvLayer,
    WorkspaceKind,
    kind_bytes,
    look_up,
)
from legroom.observe.cuda_rules.convolution.workspace_rules import Convolution
from legroom.observe.cuda_rules.plan import ScratchAlloc
from legroom.units import MiB

H200 = find_gpu("h200")


@pytest.fixture(autouse=True)
def _without_cudnn(monkeypatch):
    """Disable queries of cuDNN, because these tests are for the table, the forest and the rules."""
    monkeypatch.setattr(workspace_source, "cudnn_process", lambda: None)
    workspace_source.guess_workspaces.cache_clear()
    yield
    workspace_source.guess_workspaces.cache_clear()


def layer(batch, inputs, outputs, side, kernel, *, stride=1, element=4, last=False, groups=1):
    return Convolution(
        element=element, channels_last=last, batch=batch, inputs=inputs, outputs=outputs, input_area=side * side,
        output_area=(side // stride) ** 2, kernel_area=kernel * kernel, stride=stride, groups=groups,
    )  # fmt: skip


def copies(c, **parts):
    return c.converted(**parts)


def test_an_ordinary_convolution_copies_input_weights_and_output():
    c = layer(256, 64, 64, 56, 3)

    assert workspace_rules.forward(c) == copies(c) == 411189248


def test_a_pointwise_convolution_is_a_matrix_product_without_workspace():
    assert workspace_rules.forward(layer(64, 256, 64, 56, 1)) == 0


def test_a_strided_pointwise_convolution_is_converted():
    c = layer(128, 512, 1024, 28, 1, stride=2)

    assert workspace_rules.forward(c) == 294 * MiB


def test_a_convolution_with_few_input_channels_needs_no_workspace():
    assert workspace_rules.forward(layer(16, 3, 64, 224, 3)) == 0


def test_channels_last_images_need_no_conversion():
    assert workspace_rules.forward(layer(64, 64, 64, 56, 3, last=True)) == 0
    assert workspace_rules.input_gradient(layer(64, 64, 64, 56, 3, last=True, element=2)) == 0


def test_channels_last_with_odd_channels_is_padded():
    c = layer(64, 3, 64, 224, 7, stride=2, last=True, element=2)

    assert workspace_rules.forward(c) >= 64 * 8 * 224 * 224 * 2


def test_contiguous_depthwise_convolutions_need_no_workspace():
    c = layer(64, 96, 96, 56, 7, groups=96)

    assert workspace_rules.forward(c) == workspace_rules.weight_gradient(c, H200) == 0


def test_channels_last_depthwise_weight_gradients_have_eight_partial_sums():
    c = layer(96, 768, 768, 7, 7, groups=768, last=True, element=2)

    assert workspace_rules.weight_gradient(c, H200) == 115605504


def test_a_pointwise_weight_gradient_is_one_product_per_image():
    c = layer(200, 480, 112, 14, 1)

    assert workspace_rules.weight_gradient(c, H200) == 200 * 480 * 112 * 4


def test_weight_gradients_are_summed_by_as_many_blocks_as_the_gpu_runs():
    c = layer(128, 128, 128, 28, 3)
    partial = workspace_rules.weight_gradient(c, H200) - copies(c)

    assert partial == 14 * 128 * 128 * 9 * 4
    assert workspace_rules.weight_gradient(c, find_gpu("t4")) < workspace_rules.weight_gradient(c, H200)


def test_half_precision_pads_channels_to_eight():
    c = layer(16, 12, 64, 28, 3, element=2)

    assert workspace_rules.forward(c) == copies(c, to=8) > copies(c)


# The table


def named(c, side, kernel, stride=1, dtype="float32"):
    return ConvLayer(
        dtype, c.channels_last, c.inputs, c.outputs, (side, side), (kernel, kernel), (stride, stride), (1, 1), c.groups,
        c.transposed,
    )  # fmt: skip


def test_a_measured_layer_is_looked_up():
    c = layer(16, 512, 512, 28, 3)

    found = look_up(named(c, 28, 3), c)

    assert found is not None
    assert found.forward == pytest.approx(74 * MiB, abs=1024)


def test_a_layer_that_was_never_measured_at_this_batch_is_not_in_the_table():
    for c, side in ((layer(16, 509, 503, 29, 3), 29), (layer(21, 512, 512, 28, 3), 28)):
        assert look_up(named(c, side, 3), c) is None


def test_a_depthwise_layer_is_uncertain_only_if_cudnn_computes_it():
    for dtype, uncertain in ((torch.float16, True), (torch.float32, False)):
        log = run(
            lambda dtype=dtype: nn.Conv2d(80, 80, 3, padding=1, groups=80, bias=False, dtype=dtype),
            lambda dtype=dtype: torch.empty(31, 80, 57, 57, dtype=dtype),
        )
        plan = log.plan_of("convolution_backward")
        assert plan is not None
        assert any(step.alternatives for step in plan.steps if isinstance(step, ScratchAlloc)) is uncertain


def test_the_table_is_not_used_for_other_gpu_generations():
    with traced("a100") as log:
        F.conv2d(torch.empty(16, 512, 28, 28), torch.empty(512, 512, 3, 3), padding=1)

    plan = log.plan_of("convolution")
    assert plan is not None
    assert [step.bytes for step in plan.steps if isinstance(step, ScratchAlloc)] == [
        copies(layer(16, 512, 512, 28, 3))
    ]


def test_a_workspace_with_weight_copies_per_image_grows_with_the_batch():
    kind = WorkspaceKind(False, False, False, 1, True)

    assert kind_bytes(kind, layer(20, 8, 8, 14, 1)) == 2 * kind_bytes(kind, layer(10, 8, 8, 14, 1))


@pytest.mark.slow
def test_every_row_of_the_table_can_be_read():
    rows = [row for _, rows in recorded_table.table() for row in rows]

    assert len(rows) > 20_000
    assert all(row[place] in range(len(WORKSPACE_KINDS)) for row in rows for place in (1, 3, 5))


# The order of torch's requests


def run(module, x, gpu="h200"):
    with traced(gpu) as log:
        module = module()
        out = module(x().requires_grad_())
        out.backward(torch.empty_like(out))
    return log


def test_the_forward_pass_allocates_the_result_before_the_workspace():
    log = run(lambda: nn.Conv2d(64, 64, 3, padding=1), lambda: torch.empty(8, 64, 56, 56))

    assert step_order(log.plan_of("convolution"))[:2] == [0, "workspace"]


def test_in_the_backward_pass_each_gradient_is_followed_by_its_workspace():
    log = run(lambda: nn.Conv2d(64, 64, 3, padding=1), lambda: torch.empty(64, 64, 56, 56))

    assert step_order(log.plan_of("convolution_backward"))[:7] == [
        0, "input gradient", "-input gradient", 1, "weight gradient", "-weight gradient", 2,
    ]  # fmt: skip


def test_the_bias_gradient_of_a_channels_last_image_reduces_like_a_tall_matrix():
    with traced() as log:
        x = torch.empty(16, 64, 28, 28).to(memory_format=torch.channels_last).requires_grad_()
        bias = torch.empty(192, requires_grad=True)
        out = F.conv2d(x, torch.empty(192, 64, 3, 3), bias, padding=1)
        out.backward(torch.empty_like(out))

    assert scratch_bytes(log.plan_of("convolution_backward"))["bias 0"] == 19267584


def test_a_first_layer_computes_no_gradient_of_its_input():
    with traced() as log:
        out = nn.Conv2d(3, 64, 3, bias=False)(torch.empty(8, 3, 32, 32))
        out.backward(torch.empty_like(out))

    assert 0 in step_order(log.plan_of("convolution_backward"))
    assert "input gradient" not in scratch_bytes(log.plan_of("convolution_backward"))


def test_the_copy_of_a_gradient_in_another_layout_is_freed_before_the_bias():
    with traced() as log:
        out = nn.Conv2d(64, 64, 3, padding=1)(torch.empty(8, 64, 28, 28, requires_grad=True))
        out.backward(torch.empty(8, 28, 28, 64).permute(0, 3, 1, 2))

    steps = step_order(log.plan_of("convolution_backward"))
    assert steps[0] == "gradient"
    assert steps.index("-gradient") < steps.index(2)


def test_contiguous_weights_are_copied_for_a_channels_last_image():
    with traced() as log:
        x = torch.empty(8, 64, 28, 28).to(memory_format=torch.channels_last)
        F.conv2d(x, torch.empty(64, 64, 3, 3))

    assert scratch_bytes(log.plan_of("convolution"))["weight"] == 64 * 64 * 9 * 4


def test_torchs_depthwise_kernel_allocates_the_weight_gradient_first():
    log = run(lambda: nn.Conv2d(64, 64, 3, groups=64, bias=False), lambda: torch.empty(8, 64, 28, 28))

    assert step_order(log.plan_of("convolution_backward"))[:7] == [1, 0]


def test_further_conversions_are_alternatives_of_a_guess():
    with traced("a100") as log:
        F.conv2d(torch.empty(64, 256, 56, 56), torch.empty(64, 256, 1, 1))

    plan = log.plan_of("convolution")
    assert plan is not None
    (workspace,) = (step for step in plan.steps if isinstance(step, ScratchAlloc))
    assert workspace.bytes == 0
    assert workspace.alternatives == ((64 * (256 + 64) * 56 * 56 + 256 * 64) * 4,)


def test_a_layer_measured_at_this_batch_size_is_certain():
    with traced() as log:
        F.conv2d(torch.empty(16, 512, 28, 28), torch.empty(512, 512, 3, 3), padding=1)

    plan = log.plan_of("convolution")
    assert plan is not None
    assert [step.alternatives for step in plan.steps if isinstance(step, ScratchAlloc)] == [()]


def test_channels_last_gradients_copy_contiguous_weights():
    with traced() as log:
        x = torch.empty(8, 64, 28, 28).to(memory_format=torch.channels_last).requires_grad_()
        weight = torch.empty(64, 64, 3, 3, requires_grad=True)
        out = F.conv2d(x, weight, padding=1)
        out.backward(torch.empty_like(out))

    steps = step_order(log.plan_of("convolution_backward"))
    assert steps[:2] == [0, "weight"]
    assert steps.index("-weight") < steps.index(1)


def test_convolutions_in_one_and_three_dimensions_have_plans_too():
    for module, shape in ((nn.Conv1d(16, 32, 3), (4, 16, 100)), (nn.Conv3d(8, 16, 3), (2, 8, 8, 16, 16))):
        with traced() as log:
            weights = [torch.empty(p.shape) for p in module.parameters()]
            function = F.conv1d if len(shape) == 3 else F.conv3d
            function(torch.empty(shape), *weights)
        assert step_order(log.plan_of("convolution"))[0] == 0
