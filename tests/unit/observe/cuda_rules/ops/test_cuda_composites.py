"""Composite operations (dropout, RMS norm, softmax, optimizers), and that the originals are restored."""

import sys
import types

import torch
import torch.nn.functional as F
from torch import nn
from traced_plans import step_order, traced

from legroom.observe.cuda_rules.dispatcher import Overrides, overload
from legroom.observe.cuda_rules.rules import FakeTensorChecks


def test_dropout_saves_a_boolean_mask():
    with traced() as log:
        F.dropout(torch.empty(8, 16, requires_grad=True), 0.5)

    assert log.results_of("native_dropout") == [((8, 16), torch.float32), ((8, 16), torch.bool)]


def test_the_mask_is_allocated_before_the_result():
    with traced() as log:
        F.dropout(torch.empty(8, 16), 0.5)

    assert step_order(log.plan_of("native_dropout")) == [1, 0]


def test_dropout_with_probability_0_returns_its_input():
    with traced():
        x = torch.empty(8, 16)

        assert F.dropout(x, 0.0) is x
        assert F.dropout(x, 0.5, training=False) is x


def test_rms_norm_saves_its_input_and_one_number_per_row():
    with traced() as log:
        x = torch.empty(4, 10, 32, requires_grad=True)
        y = nn.RMSNorm(32)(x)
        saved = {tuple(t.shape) for t in y.grad_fn.saved_tensors}
        y.backward(torch.empty_like(y))

    assert saved == {(4, 10, 32), (32,), (4, 10, 1)}
    assert "rsqrt" not in log.names
    assert x.grad.shape == x.shape


def test_rms_norm_with_weights_of_another_precision_is_composed():
    with traced() as log:
        F.rms_norm(torch.empty(4, 32, dtype=torch.bfloat16), (32,), torch.empty(32))

    assert "rsqrt" in log.names


def test_before_2_9_rms_norm_was_always_composed():
    with traced(release=(2, 8)) as log:
        F.rms_norm(torch.empty(4, 32), (32,))

    assert "rsqrt" in log.names


def step_of(optimizer_class, **options):
    with traced() as log:
        parameters = [nn.Parameter(torch.empty(8, 8)) for _ in range(3)]
        optimizer = optimizer_class(parameters, lr=0.1, **options)
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
        before = len(log.calls)
        optimizer.step()
    return [name for name, _, _ in log.calls[before:]]


def test_optimizers_use_foreach_by_default():
    assert "_foreach_sqrt" in step_of(torch.optim.AdamW)
    assert "_foreach_add_" in step_of(torch.optim.SGD, momentum=0.9)


def test_an_optimizer_with_foreach_false_loops():
    assert not [name for name in step_of(torch.optim.AdamW, foreach=False) if "foreach" in name]


def test_a_fused_optimizer_runs_one_kernel():
    assert "_fused_adamw_" in step_of(torch.optim.AdamW, fused=True)


def test_clip_grad_norm_uses_foreach():
    with traced() as log:
        parameters = [nn.Parameter(torch.empty(8, 8)) for _ in range(3)]
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
        nn.utils.clip_grad_norm_(parameters, 1.0)

    assert "_foreach_norm" in log.names


def test_optimizers_on_the_host_loop_again_afterwards():
    with traced():
        pass
    utilities = sys.modules["torch.utils._foreach_utils"]

    assert "cpu" not in utilities._get_foreach_kernels_supported_devices()


def test_a_host_tensor_uses_the_cpu_path_while_rules_are_active():
    from torch._subclasses.fake_tensor import FakeTensor

    with Overrides(lambda tensor: isinstance(tensor, FakeTensor)) as overrides:
        overrides.composite("dropout", lambda *_: 1 / 0)
        kept = F.dropout(torch.ones(1000), 0.5)

    assert 300 < (kept > 0).sum() < 700


def test_an_operation_that_torch_does_not_have_is_skipped():
    with Overrides(lambda _: True) as overrides:
        overrides.composite("made_of_nothing", lambda *_: None)

    assert overload("made_of_nothing") is None


def test_an_override_ends_with_its_block():
    with Overrides(lambda _: True) as overrides:
        overrides.composite("dropout", lambda original, input, p, train: input + 41)
        inside = F.dropout(torch.ones(2), 0.5)

    assert inside.tolist() == [42.0, 42.0]
    assert F.dropout(torch.ones(2), 0.5, training=False).tolist() == [1.0, 1.0]


def test_the_fake_tensor_check_of_a_library_imported_later_is_replaced(monkeypatch):
    checks = FakeTensorChecks()
    library = types.ModuleType("transformers.utils.import_utils")
    library.is_fake_tensor = lambda tensor: True

    monkeypatch.delitem(sys.modules, library.__name__, raising=False)
    checks.replace()
    monkeypatch.setitem(sys.modules, "transformers.utils.import_utils", library)
    checks.replace()
    inside = library.is_fake_tensor(None)
    checks.restore()

    assert inside is False
    assert library.is_fake_tensor(None) is True
