"""When one row does not fit: spilling, checkpointing, lower precision, and the sentence at the end."""

import pytest
import torch
from tests.unit.train.guarded import gradients, guarded
from torch import nn

from legroom import VirtualGPU
from legroom.train.guarding.checkpointing import blocks, checkpointed

pytestmark = pytest.mark.usefixtures("frozen_heap")


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


def long_rows() -> torch.Tensor:
    return torch.randn(2, 6_000, 64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("rung", "price"), [("spill", "host memory"), ("checkpoint", "compute their activations twice")]
)
def test_an_exact_rung_gives_the_same_gradients_and_says_its_price(rung, price, caplog):
    plain = Deep()
    torch.manual_seed(7)
    (sum(plain(row[None]) for row in long_rows()) / 2).backward()
    with VirtualGPU("24MiB"):
        model = Deep().cuda()
        guard = guarded(model, ladder=(rung,), reduction="mean")
        torch.manual_seed(7)
        guard.backward(lambda x: model(x.cuda()), long_rows())
        assert guard.last.rungs == (rung,)
        assert guard.last.split == (1, 1)
        for ours, theirs in zip(gradients(model), gradients(plain), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-8)
    assert f"trying {rung}" in caplog.text
    assert price in caplog.text


def test_a_rung_stays_in_use_and_the_next_step_does_not_fail_first():
    with VirtualGPU("24MiB"):
        model = Deep().cuda()
        guard = guarded(model, reduction="mean")
        for attempts in (None, 1):
            guard.step(lambda x: model(x.cuda()), long_rows())
            assert attempts in (None, guard.last.attempts)


def test_coupled_rows_can_be_kept_whole_by_spilling():
    with VirtualGPU("64MiB"):
        model = Deep(layers=16).cuda()
        guard = guarded(model, coupling="whole")
        guard.step(lambda x: model(x.cuda()), long_rows())
        assert guard.last.split == (2,)
        assert guard.last.rungs == ("spill",)


def test_precision_is_lowered_only_where_it_was_allowed(caplog):
    with VirtualGPU("24MiB"):
        model = Deep(layers=4).cuda()
        guard = guarded(model, ladder=("bf16",), reduction="mean")
        seen = []

        def loss_fn(x):
            seen.append(torch.is_autocast_enabled("cuda"))
            return model(x.cuda())

        with pytest.raises(torch.OutOfMemoryError):
            guard.step(loss_fn, torch.cat([long_rows(), long_rows()], dim=1))
        assert seen[0] is False
        assert seen[-1] is True
    assert "as was allowed" in caplog.text


def test_the_end_of_the_ladder_names_what_was_tried_and_what_was_not():
    with VirtualGPU("12MiB"):
        model = Deep(layers=2).cuda()
        guard = guarded(model, reduction="mean", ladder=("checkpoint",))
        with pytest.raises(torch.OutOfMemoryError) as caught:
            guard.step(lambda x: model(x.cuda()), torch.cat([long_rows()] * 8, dim=1))
        said = str(caught.value)
        assert "even with checkpoint" in said
        assert "ladder=('checkpoint', 'spill', 'bf16')" in said


def test_checkpointed_blocks_compute_the_same_with_dropout_and_batch_statistics():
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
    with checkpointed(ours):
        loss = ours(x).square().sum()
    loss.backward()
    assert all(torch.equal(a, b) for a, b in zip(gradients(ours), gradients(plain), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(ours.buffers(), plain.buffers(), strict=True))
    assert all("forward" not in vars(module) for module in ours.modules())
    assert all(module.momentum == 0.1 for module in ours.modules() if isinstance(module, nn.BatchNorm1d))


def test_models_that_know_checkpointing_are_asked_to():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=16, n_positions=8)
    model = transformers.GPT2LMHeadModel(config)
    ids = torch.randint(0, 16, (2, 8))
    with checkpointed(model):
        assert model.is_gradient_checkpointing
        loss = model(ids, labels=ids).loss
    loss.backward()
    assert not model.is_gradient_checkpointing


def test_blocks_are_the_outermost_repeated_parts():
    model = Deep(layers=3)
    assert blocks(model) == list(model.layers)
    plain = nn.Module()
    plain.one, plain.two = nn.Linear(2, 2), nn.ReLU()
    assert blocks(plain) == [plain.one]


def test_gradients_of_earlier_batches_wait_in_host_memory_when_that_is_what_it_takes(caplog):
    torch.manual_seed(0)
    weights, x = torch.randn(500, 500), torch.randn(2, 300, 500)
    expected = weights.clone().requires_grad_()
    for row in x:
        (row[None] @ expected).square().mean().backward()
    with VirtualGPU("6MiB"):
        model = nn.Linear(500, 500, bias=False)
        with torch.no_grad():
            model.weight.copy_(weights.T)
        model.cuda()
        guard = guarded(model, ladder=(), reduction="mean")
        for row in x:
            guard.backward(lambda row: model(row.cuda()).square().mean(), row[None])
        torch.testing.assert_close(gradients(model)[0].T, expected.grad, rtol=1e-4, atol=1e-6)
    assert "gradients of earlier batches wait in host memory" in caplog.text
