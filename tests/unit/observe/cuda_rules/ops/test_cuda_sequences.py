"""Cells, packed sequences and convolutions over sequences on CUDA, compared with measurements on an H200."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.utils.rnn import pack_padded_sequence
from traced_plans import scratch_bytes, step_order, traced

from legroom.gpus.catalog import find_gpu
from legroom.observe.cuda_rules.rules import CudaRules


def test_an_lstm_cell_is_two_products_and_one_kernel():
    with traced() as log:
        cell = nn.LSTMCell(300, 1024)
        state = cell(torch.empty(64, 300))
        state[0].backward(torch.empty(64, 1024))

    assert log.names.count("_thnn_fused_lstm_cell") == 1
    assert [shape for shape, _ in log.results_of("_thnn_fused_lstm_cell")] == [
        (64, 1024),
        (64, 1024),
        (64, 4096),
    ]
    assert cell.weight_hh.grad.shape == (4096, 1024)
    assert "sigmoid" not in log.names


def test_a_gru_cell_saves_five_values_per_unit():
    with traced() as log:
        cell = nn.GRUCell(64, 128)
        out = cell(torch.empty(32, 64))
        out.backward(torch.empty(32, 128))

    assert [shape for shape, _ in log.results_of("_thnn_fused_gru_cell")] == [(32, 128), (32, 640)]
    assert cell.bias_ih.grad.shape == (384,)


@pytest.mark.parametrize(("kind", "sums"), [("GRU", 2), ("LSTM", 1)])
def test_bias_gradients_of_a_cell_are_sums_with_staging_buffers(kind, sums):
    """Measured on an H200: a GRU of 128 units over 9,728 samples allocated twice the size of its gates for each
    bias."""
    backward = {"GRU": "_thnn_fused_gru_cell_backward", "LSTM": "_thnn_fused_lstm_cell_backward_impl"}[kind]
    gates = {"GRU": 3, "LSTM": 4}[kind]
    with traced() as log:
        cell = getattr(nn, kind + "Cell")(128, 128)
        out = cell(torch.empty(9728, 128))
        (out[0] if isinstance(out, tuple) else out).backward(torch.empty(9728, 128))

    staged = [size for size in scratch_bytes(log.plan_of(backward)).values() if size > 4096]
    assert staged == [2 * gates * 9728 * 128 * 4] * sums


def test_a_cell_without_biases_sums_nothing():
    with traced() as log:
        nn.GRUCell(128, 128, bias=False)(torch.empty(9728, 128)).backward(torch.empty(9728, 128))

    assert log.plan_of("_thnn_fused_gru_cell_backward") is None


def packed(batch_first: bool):
    rules = CudaRules(find_gpu("h200"))
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with rules.installed(lambda tensor: isinstance(tensor, FakeTensor)):
        with fake:
            given = torch.empty(*((3, 5) if batch_first else (5, 3)), 16, requires_grad=True)
        made = pack_padded_sequence(given, torch.tensor([5, 2, 1]), batch_first=batch_first)
        made.data.backward(torch.empty_like(made.data))
    return given, made


def test_the_rows_of_a_packed_sequence_follow_from_the_lengths():
    _, made = packed(batch_first=True)

    assert made.data.shape == (8, 16)
    assert made.batch_sizes.tolist() == [3, 2, 1, 1, 1]


def test_gradients_of_packed_sequences_are_padded_with_steps_first():
    for batch_first in (True, False):
        given, _ = packed(batch_first)

        assert given.grad.shape == given.shape


def test_sequences_on_the_host_are_packed_as_usual():
    given, lengths = torch.randn(3, 5, 2), torch.tensor([5, 2, 1])
    plain = pack_padded_sequence(given, lengths, batch_first=True)

    with CudaRules(find_gpu("h200")).installed(lambda tensor: False):
        made = pack_padded_sequence(given, lengths, batch_first=True)

    assert torch.equal(made.data, plain.data)
    assert torch.equal(made.batch_sizes, plain.batch_sizes)


def test_a_transposed_sequence_is_copied_before_the_result_of_a_convolution():
    with traced() as log:
        layer = nn.Conv1d(300, 256, 3)
        given = torch.empty(128, 400, 300, requires_grad=True).transpose(1, 2)
        out = layer(given)
        out.backward(torch.empty_like(out))

    forward, backward = log.plan_of("convolution"), log.plan_of("convolution_backward")
    assert step_order(forward)[:2] == ["input", 0]
    assert scratch_bytes(forward)["input"] == 128 * 400 * 300 * 4
    assert step_order(backward)[0] == "input"
    assert "-input" not in step_order(backward)


def test_a_cropped_image_is_copied_before_the_result_of_a_convolution():
    with traced() as log:
        nn.Conv2d(8, 8, 3)(torch.empty(2, 8, 16, 16)[:, :, 2:12, 2:12])

    assert step_order(log.plan_of("convolution"))[:2] == ["input", 0]


def test_ctc_loss_saves_a_score_for_every_frame_and_target_position():
    rules = CudaRules(find_gpu("h200"))
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with rules.installed(lambda tensor: isinstance(tensor, FakeTensor)):
        with fake:
            scores = torch.empty(50, 4, 29, requires_grad=True)
            texts = torch.empty(4, 12, dtype=torch.long)
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda saved: kept.append(saved.shape) or saved, lambda x: x
        ):
            loss = F.ctc_loss(scores, texts, torch.full((4,), 50), torch.tensor([12, 9, 3, 7]))
        loss.backward()

    assert (4, 50, 2 * 12 + 1) in kept
    assert scores.grad.shape == scores.shape
