"""Replacing kernels that torch registered in Python."""

import torch

from legroom.observe.cuda_rules import dispatcher
from legroom.observe.cuda_rules.dispatcher import Overrides, _allow_replacement


def test_the_first_python_kernel_is_removed_if_a_release_rejects_a_second_one(monkeypatch):
    monkeypatch.setattr(dispatcher, "MAY_REPLACE", {})
    monkeypatch.setattr(torch.library, "_impls", {"aten/_cudnn_rnn/Meta", "aten/add.Tensor/CPU"})

    assert _allow_replacement("aten/_cudnn_rnn/Meta") == {"aten/_cudnn_rnn/Meta"}

    assert torch.library._impls == {"aten/add.Tensor/CPU"}


def test_torchs_list_of_python_kernels_is_restored(monkeypatch):
    monkeypatch.setattr(dispatcher, "MAY_REPLACE", {})
    monkeypatch.setattr(torch.library.Library, "impl", lambda self, op_name, fn, dispatch_key="": None)
    monkeypatch.setattr(torch.library, "_impls", {"aten/_cudnn_rnn/Meta"})

    with Overrides(lambda tensor: False) as overrides:
        overrides.put("_cudnn_rnn", lambda *args: None, "Meta")
        assert torch.library._impls == set()

    assert torch.library._impls == {"aten/_cudnn_rnn/Meta"}


def test_a_python_kernel_of_torch_is_replaced_until_close():
    points = torch.empty(4, 3, device="meta")

    def shape() -> tuple[int, ...]:
        return tuple(torch.ops.aten._pdist_forward(points, 2.0).shape)

    with Overrides(lambda tensor: False) as overrides:
        overrides.put("_pdist_forward", lambda x, *rest: x.new_empty(7), "Meta")
        assert shape() == (7,)

    assert shape() == (6,)
