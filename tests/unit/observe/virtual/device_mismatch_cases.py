"""A table of calls that mix host and device tensors, and whether CUDA accepts or rejects each call.

    python device_mismatch_cases.py     # on a machine with a GPU: compares the table with CUDA

test_virtual_device_mismatch compares the table with the virtual GPU. Cases named "two ..." need two devices.
"""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FINE, BAD = "succeeds", "rejected"


class Case(NamedTuple):
    expected: str
    name: str
    call: Callable[[], Any]


def c(*size: int) -> torch.Tensor:
    return torch.randn(*size, device="cuda")


def h(*size: int) -> torch.Tensor:
    return torch.randn(*size)


def ci(below: int, count: int) -> torch.Tensor:
    return torch.randint(0, below, (count,), device="cuda")


def hi(below: int, count: int) -> torch.Tensor:
    return torch.randint(0, below, (count,))


def inplace(tensor: torch.Tensor, other: torch.Tensor, method: str) -> None:
    getattr(tensor, method)(other)


def setitem(tensor: torch.Tensor, key: Any, value: torch.Tensor) -> None:
    tensor[key] = value


def trained(optimizer: Callable[[Any], torch.optim.Optimizer], *on_host: nn.Module) -> None:
    """Train one model on the device and other models on the host for one step."""
    model = nn.Linear(2, 2).cuda()
    loss = model(c(1, 2)).sum().cpu() + sum(module(h(1, 2)).sum() for module in on_host)
    loss.backward()
    parameters = [p for module in (model, *on_host) for p in module.parameters()]
    nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer(parameters).step()


def outcome(case: Case) -> str:
    """Return the outcome on the current `cuda` device, which may be real or virtual."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            case.call()
        except (RuntimeError, TypeError):
            return BAD
    return FINE


CASES = [
    Case(BAD, "add", lambda: c(3) + h(3)),
    Case(FINE, "add host scalar tensor", lambda: c(3) + torch.tensor(2.0)),
    Case(FINE, "host scalar tensor on left", lambda: torch.tensor(2.0) * c(3)),
    Case(BAD, "host vec + cuda scalar", lambda: h(3) + torch.tensor(2.0, device="cuda")),
    Case(BAD, "host vec *= cuda scalar", lambda: inplace(h(3), torch.tensor(2.0, device="cuda"), "mul_")),
    Case(BAD, "cuda += host", lambda: inplace(c(3), h(3), "add_")),
    Case(FINE, "cuda += host scalar", lambda: inplace(c(3), torch.tensor(1.0), "add_")),
    Case(BAD, "host += cuda", lambda: inplace(h(3), c(3), "add_")),
    Case(BAD, "mm", lambda: c(2, 2) @ h(2, 2)),
    Case(BAD, "linear host input", lambda: nn.Linear(2, 2).cuda()(h(1, 2))),
    Case(BAD, "linear cuda input host model", lambda: nn.Linear(2, 2)(c(1, 2))),
    Case(BAD, "conv host input", lambda: nn.Conv2d(1, 1, 3).cuda()(h(1, 1, 5, 5))),
    Case(BAD, "embedding host idx", lambda: nn.Embedding(5, 2).cuda()(hi(5, 3))),
    Case(BAD, "embedding_bag host idx", lambda: nn.EmbeddingBag(5, 2).cuda()(hi(5, 4).view(2, 2))),
    Case(FINE, "index with host idx", lambda: c(5, 2)[hi(5, 3)]),
    Case(FINE, "index with host bool mask", lambda: c(4)[torch.tensor([True, False, True, True])]),
    Case(BAD, "host indexed by cuda idx", lambda: h(5)[ci(5, 3)]),
    Case(BAD, "host indexed by cuda mask", lambda: h(5)[c(5) > 0]),
    Case(FINE, "setitem host scalar", lambda: setitem(c(5), hi(5, 2), torch.tensor(1.0))),
    Case(BAD, "setitem(idx) host vec", lambda: setitem(c(5), hi(5, 2), h(2))),
    Case(FINE, "setitem(slice) host vec", lambda: setitem(c(5), slice(0, 2), h(2))),
    Case(FINE, "setitem host slice from cuda", lambda: setitem(h(5), slice(0, 2), c(2))),
    Case(FINE, "one host value through a mask", lambda: setitem(c(5), c(5) > 9, h(1))),
    Case(BAD, "cat", lambda: torch.cat([c(2), h(2)])),
    Case(BAD, "stack scalars", lambda: torch.stack([torch.tensor(1.0, device="cuda"), torch.tensor(1.0)])),
    Case(BAD, "where cond host", lambda: torch.where(h(3) > 0, c(3), c(3))),
    Case(BAD, "where value host", lambda: torch.where(c(3) > 0, c(3), h(3))),
    Case(FINE, "where value host scalar", lambda: torch.where(c(3) > 0, c(3), torch.tensor(0.0))),
    Case(BAD, "masked_fill host mask", lambda: c(3).masked_fill(torch.tensor([True, False, True]), 0.0)),
    Case(BAD, "masked_fill_ host mask", lambda: c(3).masked_fill_(torch.tensor([True, False, True]), 0.0)),
    Case(FINE, "masked_fill host value", lambda: c(3).masked_fill(c(3) > 0, torch.tensor(0.0))),
    Case(BAD, "masked_select host mask", lambda: c(3).masked_select(torch.tensor([True, False, True]))),
    Case(BAD, "gather host idx", lambda: c(3).gather(0, hi(3, 2))),
    Case(BAD, "index_select host idx", lambda: c(3).index_select(0, hi(3, 2))),
    Case(BAD, "scatter_ host idx", lambda: c(3).scatter_(0, hi(3, 1), 1.0)),
    Case(BAD, "scatter_add_ host src", lambda: c(3).scatter_add_(0, ci(3, 2), h(2))),
    Case(BAD, "index_add_ host src", lambda: c(3).index_add_(0, ci(3, 2), h(2))),
    Case(BAD, "take host idx", lambda: torch.take(c(3), hi(3, 2))),
    Case(BAD, "cross_entropy host target", lambda: F.cross_entropy(c(3, 4), hi(4, 3))),
    Case(
        BAD, "cross_entropy host weight", lambda: nn.CrossEntropyLoss(weight=torch.ones(4))(c(3, 4), ci(4, 3))
    ),
    Case(BAD, "mse host target", lambda: F.mse_loss(c(3), h(3))),
    Case(
        BAD,
        "bce pos_weight host",
        lambda: nn.BCEWithLogitsLoss(pos_weight=torch.ones(3))(c(2, 3), torch.ones(2, 3, device="cuda")),
    ),
    Case(
        BAD,
        "sdpa host mask",
        lambda: F.scaled_dot_product_attention(
            c(1, 1, 4, 8), c(1, 1, 4, 8), c(1, 1, 4, 8), attn_mask=torch.ones(4, 4)
        ),
    ),
    Case(BAD, "lstm host hidden", lambda: nn.LSTM(2, 2).cuda()(c(3, 1, 2), (h(1, 1, 2), h(1, 1, 2)))),
    Case(BAD, "lstm host input", lambda: nn.LSTM(2, 2).cuda()(h(3, 1, 2))),
    Case(
        BAD,
        "pack cuda lengths",
        lambda: nn.utils.rnn.pack_padded_sequence(c(3, 2, 1), torch.tensor([3, 2], device="cuda")),
    ),
    Case(
        FINE, "pack host lengths", lambda: nn.utils.rnn.pack_padded_sequence(c(3, 2, 1), torch.tensor([3, 2]))
    ),
    Case(FINE, "copy_ cuda<-host", lambda: c(3).copy_(h(3))),
    Case(FINE, "copy_ host<-cuda", lambda: h(3).copy_(c(3))),
    Case(FINE, ".data = moved", lambda: setattr(nn.Parameter(h(2)), "data", c(2))),
    Case(FINE, "tensor_split host idx", lambda: torch.tensor_split(c(5), torch.tensor([1, 3]))),
    Case(
        BAD, "repeat_interleave host repeats", lambda: torch.repeat_interleave(c(3), torch.tensor([1, 2, 1]))
    ),
    Case(BAD, "bucketize host boundaries", lambda: torch.bucketize(c(3), h(3).sort().values)),
    Case(BAD, "interp/grid_sample host grid", lambda: F.grid_sample(c(1, 1, 4, 4), h(1, 2, 2, 2))),
    Case(BAD, "lerp_ host", lambda: c(3).lerp_(h(3), 0.5)),
    Case(BAD, "addcmul_ host", lambda: c(3).addcmul_(h(3), c(3))),
    Case(BAD, "dot", lambda: torch.dot(c(3), h(3))),
    Case(BAD, "einsum", lambda: torch.einsum("i,i->i", c(3), h(3))),
    Case(BAD, "cdist", lambda: torch.cdist(c(2, 2), h(2, 2))),
    Case(BAD, "eq", lambda: c(3) == h(3)),
    Case(BAD, "equal", lambda: torch.equal(c(3), h(3))),
    Case(BAD, "allclose", lambda: torch.allclose(c(3), h(3))),
    Case(BAD, "maximum", lambda: torch.maximum(c(3), h(3))),
    Case(FINE, "clamp host scalar", lambda: c(3).clamp(min=torch.tensor(0.0))),
    Case(BAD, "clamp host vec", lambda: c(3).clamp(min=h(3))),
    Case(BAD, "bmm", lambda: torch.bmm(c(1, 2, 2), h(1, 2, 2))),
    Case(BAD, "batchnorm host running", lambda: F.batch_norm(c(4, 2), torch.zeros(2), torch.ones(2))),
    Case(BAD, "layer_norm host weight", lambda: F.layer_norm(c(4, 2), (2,), torch.ones(2))),
    Case(BAD, "normal_ cpu gen", lambda: c(3).normal_(generator=torch.Generator())),
    Case(BAD, "randn cuda cpu gen", lambda: torch.randn(2, device="cuda", generator=torch.Generator())),
    Case(BAD, "randperm cuda gen host", lambda: torch.randperm(4, generator=torch.Generator("cuda"))),
    Case(
        FINE,
        "randperm cuda gen cuda",
        lambda: torch.randperm(4, generator=torch.Generator("cuda"), device="cuda"),
    ),
    Case(
        BAD,
        "multinomial cpu gen",
        lambda: torch.multinomial(torch.ones(3, device="cuda"), 1, generator=torch.Generator()),
    ),
    Case(
        FINE,
        "ctc host lengths",
        lambda: F.ctc_loss(
            c(5, 1, 3).log_softmax(2),
            torch.tensor([[1, 2]], device="cuda"),
            torch.tensor([5]),
            torch.tensor([2]),
        ),
    ),
    Case(FINE, "Adam step", lambda: trained(torch.optim.Adam)),
    Case(
        FINE,
        "Adam lr tensor",
        lambda: trained(lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1), foreach=False)),
    ),
    Case(FINE, "half host half cuda opt", lambda: trained(torch.optim.AdamW, nn.Linear(2, 2))),
    Case(FINE, "fused adam", lambda: trained(lambda p: torch.optim.Adam(p, fused=True))),
    Case(BAD, "grad assigned host", lambda: setattr(nn.Parameter(c(3)), "grad", h(3))),
    Case(
        FINE,
        "DataLoader of cuda tensors",
        lambda: list(
            torch.utils.data.DataLoader(torch.utils.data.TensorDataset(c(4, 2)), batch_size=2, shuffle=True)
        ),
    ),
    Case(FINE, "torch.tensor(list of cuda scalars)", lambda: torch.tensor(list(c(3)))),
    Case(FINE, "numpy number", lambda: c(3) * np.float32(2)),
    Case(BAD, "numpy array mul", lambda: c(3) * torch.from_numpy(np.ones(3, dtype="float32"))),
    Case(FINE, "histc/bincount", lambda: torch.bincount(ci(3, 5), minlength=3)),
    Case(BAD, "bincount host weights", lambda: torch.bincount(ci(3, 5), weights=h(5))),
    Case(BAD, "nll host buffer attr", lambda: c(3).new_tensor([1.0, 2.0, 3.0]).cpu() + c(3)),
    Case(FINE, "new_tensor", lambda: c(3) + c(3).new_tensor([1.0, 2.0, 3.0])),
    Case(FINE, "softmax mask built host moved", lambda: c(3, 3) + torch.triu(torch.ones(3, 3), 1).to("cuda")),
    Case(
        FINE,
        "mixed checkpoint",
        lambda: (
            torch.utils.checkpoint.checkpoint(lambda a: a * 2, c(3).requires_grad_(), use_reentrant=False)
            .sum()
            .backward()
        ),
    ),
    Case(FINE, "resize", lambda: F.interpolate(c(1, 1, 4, 4), scale_factor=2)),
    Case(FINE, "quantile w/ host scalar", lambda: torch.quantile(c(5), torch.tensor(0.5, device="cuda"))),
    Case(BAD, "pairwise host", lambda: F.pairwise_distance(c(2, 2), h(2, 2))),
    Case(
        BAD, "sparse mm host dense", lambda: torch.sparse.mm(torch.eye(2, device="cuda").to_sparse(), h(2, 2))
    ),
    Case(FINE, "sparse mm", lambda: torch.sparse.mm(torch.eye(2, device="cuda").to_sparse(), c(2, 2))),
    Case(
        FINE,
        "sparse from host idx with device",
        lambda: (
            torch.sparse_coo_tensor(torch.tensor([[0, 1], [0, 1]]), h(2), (2, 2), device="cuda") @ c(2, 2)
        ),
    ),
    Case(FINE, "sparse to cuda", lambda: torch.eye(2).to_sparse().to("cuda") @ c(2, 2)),
    Case(BAD, "two gpus", lambda: c(3) + torch.ones(3, device="cuda:1")),
    Case(BAD, "two gpus scalar", lambda: c(3) + torch.tensor(1.0, device="cuda:1")),
    Case(BAD, "two gpus cat", lambda: torch.cat([c(3), torch.ones(3, device="cuda:1")])),
    Case(BAD, "two gpus idx", lambda: c(3)[torch.tensor([0], device="cuda:1")]),
]

if __name__ == "__main__":
    cases = [case for case in CASES if torch.cuda.device_count() > 1 or not case.name.startswith("two ")]
    wrong = [case for case in cases if outcome(case) != case.expected]
    for case in wrong:
        print(f"{case.name}: expected {case.expected}, but it is not so")
    print(f"{len(cases) - len(wrong)} of {len(cases)} as expected, torch {torch.__version__}")
