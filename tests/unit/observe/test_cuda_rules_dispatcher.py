"""Kernels of ours beside those that torch itself wrote in Python."""

import torch

from legroom.observe.cuda_rules import dispatcher
from legroom.observe.cuda_rules.dispatcher import Overrides, made_replaceable


def test_a_release_that_refuses_a_second_python_kernel_is_made_to_forget_the_first(monkeypatch):
    monkeypatch.setattr(dispatcher, "MAY_REPLACE", {})
    monkeypatch.setattr(torch.library, "_impls", {"aten/_cudnn_rnn/Meta", "aten/add.Tensor/CPU"})

    assert made_replaceable("aten/_cudnn_rnn/Meta") == {"aten/_cudnn_rnn/Meta"}

    assert torch.library._impls == {"aten/add.Tensor/CPU"}


def test_torchs_own_note_is_back_after_closing(monkeypatch):
    monkeypatch.setattr(dispatcher, "MAY_REPLACE", {})
    monkeypatch.setattr(torch.library.Library, "impl", lambda self, op_name, fn, dispatch_key="": None)
    monkeypatch.setattr(torch.library, "_impls", {"aten/_cudnn_rnn/Meta"})

    with Overrides(lambda tensor: False) as overrides:
        overrides.put("_cudnn_rnn", lambda *args: None, "Meta")
        assert torch.library._impls == set()

    assert torch.library._impls == {"aten/_cudnn_rnn/Meta"}


def test_a_kernel_that_torch_wrote_in_python_is_replaced_until_it_is_closed():
    points = torch.empty(4, 3, device="meta")

    def shape() -> tuple[int, ...]:
        return tuple(torch.ops.aten._pdist_forward(points, 2.0).shape)

    with Overrides(lambda tensor: False) as overrides:
        overrides.put("_pdist_forward", lambda x, *rest: x.new_empty(7), "Meta")
        assert shape() == (7,)

    assert shape() == (6,)
