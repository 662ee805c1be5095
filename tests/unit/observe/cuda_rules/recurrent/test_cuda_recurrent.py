"""Recurrent layers, compared with measurements on an H200 with cuDNN 9.19."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from traced_plans import OpLog, step_order, traced

from legroom.gpus.catalog import find_gpu
from legroom.observe.cuda_rules.plan import ScratchAlloc
from legroom.observe.cuda_rules.recurrent.sizes import RecurrentLayer, dropout_state, reserve, workspace
from legroom.observe.cuda_rules.rules import CudaRules

MODES = {"LSTM": 2, "GRU": 3, "RNN": 1}


def layer(
    kind,
    layers,
    inputs,
    hidden,
    batch,
    steps,
    *,
    dtype="float32",
    both=False,
    training=True,
    dropout=False,
    **more,
):
    return RecurrentLayer(
        mode=MODES[kind], steps=steps, batch=batch, inputs=inputs, hidden=hidden, layers=layers,
        directions=2 if both else 1, dtype=dtype, training=training, dropout=dropout, **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "size"),
    [
        (layer("LSTM", 1, 128, 128, 32, 50), 4096256),
        (layer("LSTM", 2, 650, 650, 160, 70), 320320256),
        (layer("LSTM", 4, 256, 256, 64, 100), 150733056),
        (layer("LSTM", 3, 256, 512, 128, 200, both=True), 1782579456),
        (layer("LSTM", 2, 650, 650, 20, 70, dropout=True), 40154016),
        (layer("LSTM", 2, 650, 650, 160, 70, dtype="float16", dropout=True), 161070272),
        (layer("LSTM", 2, 650, 650, 160, 70, training=False), 0),
        (layer("LSTM", 1, 256, 1024, 32, 50, both=True, dtype="bfloat16", projected=64), 39731456),
        (layer("LSTM", 2, 256, 300, 32, 50, dtype="bfloat16", projected=200), 13760256),
        (layer("GRU", 2, 26, 64, 16, 512, rows=5056), 16826624),
    ],
)
def test_the_reserve_equals_the_measurement(asked, size):
    assert reserve(asked) == size


@pytest.mark.parametrize(
    ("asked", "size"),
    [
        (layer("LSTM", 2, 650, 650, 160, 70), 226858752),
        (layer("LSTM", 2, 650, 650, 20, 70), 66697632),
        (layer("LSTM", 3, 256, 512, 128, 200), 344458496),
        (layer("LSTM", 2, 650, 650, 160, 70, dropout=True), 255978752),
        (layer("GRU", 3, 256, 512, 128, 200, dropout=True), 334759168),
    ],
)
def test_the_workspace_equals_the_measurement(asked, size):
    assert workspace(asked) == size


@pytest.mark.parametrize(
    ("asked", "size"),
    [
        (layer("LSTM", 1, 256, 1024, 32, 50, both=True, dtype="bfloat16", projected=64), 70713856),
        (layer("LSTM", 2, 40, 350, 20, 60, dtype="float16", projected=200, training=False), 23881632),
        (layer("LSTM", 2, 3, 1280, 24, 7, dropout=True, training=False), 102242720),
        (layer("RNN", 1, 200, 64, 4, 28, training=False), 8722208),
        (layer("GRU", 1, 100, 40, 384, 20), 38933376),
        (layer("LSTM", 1, 256, 256, 32, 50, dtype="float16"), 27591168),
        (layer("LSTM", 1, 256, 256, 32, 50, dtype="bfloat16"), 14533120),
        (layer("LSTM", 2, 400, 256, 50, 200, dropout=True), 100026016),
    ],
)
def test_workspaces_of_every_algorithm_are_close_to_measurements(asked, size):
    assert workspace(asked) == pytest.approx(size, rel=0.02)


@pytest.mark.parametrize(
    ("asked", "size"),
    [
        (layer("LSTM", 2, 3, 400, 64, 299), 162230016),
        (layer("LSTM", 1, 13, 1280, 64, 300, dtype="float16"), 240691456),
        (layer("LSTM", 1, 512, 500, 24, 300), 104449856),
        (layer("LSTM", 2, 256, 256, 32, 800, dtype="float16"), 85164544),
        (layer("LSTM", 4, 2, 900, 4, 400, training=False), 145397920),
        (layer("GRU", 3, 100, 500, 40, 300, dtype="bfloat16"), 78686400),
        (layer("GRU", 2, 512, 256, 32, 50), 34669056),
        (layer("GRU", 2, 6, 320, 12, 300, dtype="bfloat16", training=False), 26954528),
    ],
)
def test_gates_in_chunks_use_the_measured_memory(asked, size):
    assert workspace(asked) == size


def test_the_forward_pass_is_persistent_for_larger_layers_than_the_backward_pass():
    middling = layer("LSTM", 1, 256, 150, 32, 50, dtype="float16", both=True)

    assert workspace(middling) == pytest.approx(33144128, rel=0.005)
    assert workspace(middling, backward=True) == pytest.approx(25796928, rel=0.02)


@pytest.mark.parametrize(
    ("asked", "size"),
    [
        (layer("LSTM", 2, 650, 650, 160, 70, both=True), 557923968),
        (layer("LSTM", 4, 256, 256, 64, 100, both=True), 194773760),
        (layer("LSTM", 1, 512, 1024, 64, 100, both=True), 453509888),
    ],
)
def test_the_workspace_of_bidirectional_layers_is_close_to_measurements(asked, size):
    assert workspace(asked) == pytest.approx(size, rel=0.001)


def test_the_dropout_state_has_one_generator_per_thread_of_the_gpu():
    assert dropout_state(find_gpu("h200")) == 6488064


def run(kind="LSTM", *, autocast=None, flatten=True, **options):
    with traced() as log:
        module = getattr(nn, kind)(16, 32, 2, batch_first=True, **options)
        if flatten:
            module.flatten_parameters()
        x = torch.empty(4, 10, 16, requires_grad=True)
        with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
            out, _ = module(x)
        out.backward(torch.empty_like(out))
        log.module, log.out, log.x = module, out, x
    return log


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_module_is_one_operation(kind):
    names = run(kind).names

    assert names.count("_cudnn_rnn") == 1
    assert names.count("_cudnn_rnn_backward") == 1


def test_shapes_are_those_of_the_module():
    log = run(bidirectional=True)

    assert log.out.shape == (4, 10, 64)
    assert log.x.grad.shape == (4, 10, 16)


def test_flattened_weights_share_one_buffer():
    weights = list(run().module.parameters())

    assert len({weight.untyped_storage()._cdata for weight in weights}) == 1


def test_gradients_of_all_weights_share_one_buffer():
    gradients = [weight.grad for weight in run().module.parameters()]

    assert [g.shape for g in gradients] == [w.shape for w in run().module.parameters()]
    assert len({gradient.untyped_storage()._cdata for gradient in gradients}) == 1


def test_weights_that_are_not_flattened_are_copied_at_every_call():
    results = run(flatten=False).results_of("_cudnn_rnn")

    assert results[4][0] == (sum(w.numel() for w in run().module.parameters()),)


def test_bfloat16_weights_are_never_flattened():
    with traced() as log:
        module = nn.LSTM(16, 32, dtype=torch.bfloat16)
        module.flatten_parameters()
        module(torch.empty(10, 4, 16, dtype=torch.bfloat16))

    assert len({weight.untyped_storage()._cdata for weight in module.parameters()}) == 4
    assert log.results_of("_cudnn_rnn")[4][0] == (sum(w.numel() for w in module.parameters()),)


def test_weight_gradients_without_biases_are_copied_from_cudnns_buffer():
    log = run(bias=False)

    assert len({weight.grad.untyped_storage()._cdata for weight in log.module.parameters()}) == 4
    assert step_order(log.plan_of("_cudnn_rnn_backward"))[-6:] == ["gradients", "workspace", 3, 4, 5, 6]


def test_the_reserve_is_saved_for_the_backward_pass():
    reserved = run().results_of("_cudnn_rnn")[3]

    assert reserved == ((reserve(layer("LSTM", 2, 16, 32, 4, 10)),), torch.uint8)


def test_the_input_is_reordered_first_and_the_workspace_precedes_the_reserve():
    plan = run().plan_of("_cudnn_rnn")

    assert step_order(plan) == ["input", 0, 1, 2, 4, "workspace", 3]


def test_the_backward_pass_allocates_the_workspace_twice():
    steps = step_order(run().plan_of("_cudnn_rnn_backward"))

    assert steps.count("workspace") == 2
    assert steps.index("-workspace") < steps.index(3) < len(steps) - 1


def test_if_only_the_last_state_is_used_the_output_gradient_is_zeros():
    with traced() as log:
        out, state = nn.GRU(16, 32)(torch.empty(10, 4, 16, requires_grad=True))
        state.backward(torch.empty_like(state))

    plan = log.plan_of("_cudnn_rnn_backward")
    assert plan is not None
    assert plan.steps[0] == ScratchAlloc("zeros", out.numel() * 4)


def test_unused_gradients_are_allocated_too():
    with traced() as log:
        nn.LSTM(16, 32)(torch.empty(5, 3, 16))[0].sum().backward()

    steps = step_order(log.plan_of("_cudnn_rnn_backward"))
    assert steps[:4] == ["unused hx", "unused cx", "unused input", "hx"]
    assert 0 in steps[4:]


def test_the_weight_gradients_of_a_gru_follow_its_state():
    assert 2 in step_order(run("GRU").plan_of("_cudnn_rnn_backward"))[4:]


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
def test_autocast_casts_all_weights_to_float16_in_a_new_buffer(precision):
    log = run(autocast=precision)

    assert log.out.dtype == torch.float16
    assert log.results_of("new_zeros")[1] == torch.float16
    assert all(weight.grad.dtype == torch.float32 for weight in log.module.parameters())


def test_packed_sequences_run_as_one_operation_too():
    rules = CudaRules(find_gpu("h200"))
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    log = OpLog(rules)
    with log, rules.installed(lambda tensor: isinstance(tensor, FakeTensor)):
        with fake:
            module = nn.GRU(16, 32)
            data = torch.empty(9, 16)
        out, last = module(nn.utils.rnn.PackedSequence(data, torch.tensor([4, 3, 2])))

    assert log.names.count("_cudnn_rnn") == 1
    assert out.data.shape == (9, 32)
    assert last.shape == (1, 4, 32)


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell])
def test_cells_without_biases_allocate_their_gates_before_their_states(cell):
    with traced() as log:
        out = cell(64, 32, bias=False)(torch.empty(16, 64, requires_grad=True))
        (out[0] if isinstance(out, tuple) else out).sum().backward()

    kept, states = (2, (0, 1)) if cell is nn.LSTMCell else (1, (0,))
    name = next(name for name in log.names if name.startswith("_thnn_fused"))
    assert step_order(log.plan_of(name)) == [kept, *states]
