"""Python syntax and printing that read a device tensor: each works as with a CUDA tensor, with data and without."""

import contextlib
import copy
import json
import math
import operator
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from legroom.observe.fake.fake_tensors import FakeTensors
from legroom.observe.virtual.gpu import VirtualGPU

NUMBERS: dict[str, Callable[[Any], Any]] = {
    "format": lambda t: f"{t:.3f}",
    "width": lambda t: f"{t:>10}",
    "str.format": lambda t: "{:.2e}".format(t),  # noqa: UP032
    "percent": lambda t: "loss %.4f %d %s" % (t, t, t),  # noqa: UP031
    "str": str,
    "float": float,
    "int": int,
    "bool": bool,
    "complex": complex,
    "item": lambda t: t.item(),
    "tolist": lambda t: t.tolist(),
    "json": lambda t: json.dumps(float(t)),
    "math": lambda t: (math.sqrt(t), math.isnan(t), math.floor(t), math.exp(t)),
    "if": lambda t: 1 if t > 0.5 else 2,
    "chained": lambda t: 0 <= t <= 2,
    "max": lambda t: float(max(t, 0 * t)),
    "sorted": lambda t: len(sorted([t, t])),
    "sum": lambda t: float(sum([t, t])),
    "in": lambda t: (t in [1, 2], 1 in t),
    "torch.tensor": lambda t: torch.tensor([t, t]).shape,
    "as_tensor": lambda t: torch.as_tensor([t]).shape,
    "new_tensor": lambda t: t.new_tensor([t, 1]).shape,
    "numpy": lambda t: (t.detach().cpu().float().numpy().shape, t.float().numpy(force=True).shape),
    "numpy item": lambda t: operator.setitem(np.zeros(2), 0, t),
    "pickle": lambda t: (pickle.loads(pickle.dumps(t.detach())).shape, pickle.loads(pickle.dumps(t.detach())).is_cuda),
    "deepcopy": lambda t: copy.deepcopy(t.detach()).shape,
    "equal": lambda t: (torch.equal(t, t), torch.allclose(t, t)),
    "match": lambda t: bool(t == 1),
}  # fmt: skip
INTEGERS: dict[str, Callable[[Any], Any]] = {
    "range": lambda t: len(range(t)),
    "slice": lambda t: list(range(9))[:t],
    "index": operator.index,
    "format": lambda t: f"{t:d} {t:x}",
    "repeat": lambda t: [0] * t,
    "shape": lambda t: torch.zeros(t, 2).shape,
    "tensor slice": lambda t: torch.zeros(9)[:t].shape,
    "histc": lambda t: torch.histc(t.expand(4), 2, 0, 2).shape,
}
MODES = (contextlib.nullcontext, torch.no_grad, torch.inference_mode)


@pytest.fixture(params=["data", "no data"])
def layer(request: pytest.FixtureRequest) -> Iterator[Callable[[], torch.Tensor]]:
    """Yield a function that returns a 0-dimensional tensor computed by the model."""
    fake = FakeTensors() if request.param == "no data" else None
    with VirtualGPU("1GiB", fake_tensors=fake, bounded=fake is None):
        model = torch.nn.Linear(1, 1, bias=False).cuda()
        if fake is None:
            torch.nn.init.ones_(model.weight)
        yield lambda: model(torch.ones(1, 1, device="cuda")).sum()


@pytest.mark.parametrize("mode", MODES)
def test_every_syntax_that_reads_a_number_works_in_every_gradient_mode(layer: Any, mode: Any) -> None:
    failures = []
    with mode():
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            value = layer().to(dtype)
            for name, read in (NUMBERS if dtype.is_floating_point else NUMBERS | INTEGERS).items():
                try:
                    read(value)
                except Exception as error:
                    failures.append(f"{name} {dtype}: {error!r}")
    assert failures == []


def test_formatting_a_value_of_the_model_yields_a_number(layer: Any) -> None:
    with torch.inference_mode():
        assert f"{layer():.3f}" == "1.000"
    assert f"{layer():.3f}" == "1.000"


def test_numpy_rejects_a_device_tensor(layer: Any) -> None:
    with pytest.raises(TypeError, match="can't convert cuda:0"):
        np.asarray(layer().detach())


def test_operations_in_inference_mode_are_recorded_like_those_without_gradients() -> None:
    operations = {}
    for mode in (torch.no_grad, torch.inference_mode):
        events: list[Any] = []
        with VirtualGPU("1GiB", sink=events.append), mode():
            block = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0).cuda().train()
            block(torch.randn(3, 2, 8, device="cuda"))
        operations[mode] = [event.op for event in events if hasattr(event, "op")]
    assert operations[torch.no_grad] == operations[torch.inference_mode]
