"""Fallbacks if a single sample does not fit: spilling, checkpointing, lower precision, and the final error."""

import pytest
import torch
from tests.unit.train.guarded import gradients, guarded
from torch import nn

from legroom import VirtualGPU
from legroom.train.guarding.checkpointing import blocks, checkpoint_blocks


class Deep(nn.Module):
    def __init__(self, layers: int = 8, width: int = 64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.2)) for _ in range(layers)
        )

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


def long_samples() -> torch.Tensor:
    return torch.randn(2, 6_000, 64, generator=torch.Generator().manual_seed(1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fallback", "cost"), [("spill", "host memory"), ("checkpoint", "recomputes the activations")]
)
def test_exact_fallbacks_give_the_same_gradients_and_log_their_cost(fallback, cost, caplog):
    plain = Deep()
    torch.manual_seed(7)
    (sum(plain(sample[None]) for sample in long_samples()) / 2).backward()
    with VirtualGPU("24MiB"):
        model = Deep().cuda()
        guard = guarded(model, fallbacks=(fallback,), reduction="mean")
        torch.manual_seed(7)
        guard.backward(lambda x: model(x.cuda()), long_samples())
        assert guard.last_step.fallbacks == (fallback,)
        assert guard.last_step.split == (1, 1)
        for ours, theirs in zip(gradients(model), gradients(plain), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-8)
    assert f"Trying {fallback}" in caplog.text
    assert cost in caplog.text


@pytest.mark.slow
def test_a_fallback_stays_active_so_that_the_next_step_succeeds_at_once():
    with VirtualGPU("24MiB"):
        model = Deep().cuda()
        guard = guarded(model, reduction="mean")
        for attempts in (None, 1):
            guard.step(lambda x: model(x.cuda()), long_samples())
            assert attempts in (None, guard.last_step.attempts)


@pytest.mark.slow
def test_no_split_spills_instead_of_splitting():
    with VirtualGPU("64MiB"):
        model = Deep(layers=16).cuda()
        guard = guarded(model, coupling="no-split")
        guard.step(lambda x: model(x.cuda()), long_samples())
        assert guard.last_step.split == (2,)
        assert guard.last_step.fallbacks == ("spill",)


@pytest.mark.slow
def test_lower_precision_is_used_only_if_allowed(caplog):
    with VirtualGPU("24MiB"):
        model = Deep(layers=4).cuda()
        guard = guarded(model, fallbacks=("bf16",), reduction="mean")
        seen = []

        def loss_fn(x):
            seen.append(torch.is_autocast_enabled("cuda"))
            return model(x.cuda())

        with pytest.raises(torch.OutOfMemoryError):
            guard.step(loss_fn, torch.cat([long_samples(), long_samples()], dim=1))
        assert seen[0] is False
        assert seen[-1] is True
    assert "as allowed by fallbacks=" in caplog.text


def test_the_final_error_names_the_fallbacks_that_were_tried_and_those_that_were_not():
    with VirtualGPU("12MiB"):
        model = Deep(layers=2).cuda()
        guard = guarded(model, reduction="mean", fallbacks=("checkpoint",))
        with pytest.raises(torch.OutOfMemoryError) as caught:
            guard.step(lambda x: model(x.cuda()), torch.cat([long_samples()] * 8, dim=1))
        message = str(caught.value)
        assert "even with checkpoint" in message
        assert "fallbacks=('checkpoint', 'spill', 'bf16')" in message


def test_checkpointed_blocks_give_the_same_results_with_dropout_and_batch_norm():
    def build():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)),
            nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)),
        )

    plain, ours = build(), build()
    x = torch.randn(10, 6)
    torch.manual_seed(1)
    plain(x).square().sum().backward()
    torch.manual_seed(1)
    with checkpoint_blocks(ours):
        loss = ours(x).square().sum()
    loss.backward()
    assert all(torch.equal(a, b) for a, b in zip(gradients(ours), gradients(plain), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(ours.buffers(), plain.buffers(), strict=True))
    assert all("forward" not in vars(module) for module in ours.modules())
    assert all(module.momentum == 0.1 for module in ours.modules() if isinstance(module, nn.BatchNorm1d))


def test_transformers_models_use_their_own_checkpointing():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=16, n_positions=8)
    model = transformers.GPT2LMHeadModel(config)
    ids = torch.randint(0, 16, (2, 8))
    with checkpoint_blocks(model):
        assert model.is_gradient_checkpointing
        loss = model(ids, labels=ids).loss
    loss.backward()
    assert not model.is_gradient_checkpointing


def test_blocks_are_the_members_of_the_outermost_containers():
    model = Deep(layers=3)
    assert blocks(model) == list(model.layers)
    plain = nn.Module()
    plain.one, plain.two = nn.Linear(2, 2), nn.ReLU()
    assert blocks(plain) == [plain.one]


@pytest.mark.slow
def test_gradients_of_earlier_batches_are_offloaded_if_a_sample_does_not_fit(caplog):
    torch.manual_seed(0)
    weights, x = torch.randn(500, 500), torch.randn(2, 300, 500)
    expected = weights.clone().requires_grad_()
    for sample in x:
        (sample[None] @ expected).square().mean().backward()
    with VirtualGPU("6MiB"):
        model = nn.Linear(500, 500, bias=False)
        with torch.no_grad():
            model.weight.copy_(weights.T)
        model.cuda()
        guard = guarded(model, fallbacks=(), reduction="mean")
        for sample in x:
            guard.backward(lambda sample: model(sample.cuda()).square().mean(), sample[None])
        torch.testing.assert_close(gradients(model)[0].T, expected.grad, rtol=1e-4, atol=1e-6)
    assert "Moving the gradients of earlier batches to host memory" in caplog.text
