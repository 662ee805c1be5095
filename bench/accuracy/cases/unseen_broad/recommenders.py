"""Who likes what. Cases stand above the model they train."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.accuracy.cases.case import CaseSet
from bench.lib.models.blocks import yes_or_no
from bench.lib.models.layers import Recurrent, joined
from bench.lib.models.parts import Spec, bits, classified, kinds, made, perceptron

SEVENTH_RECOMMENDERS = CaseSet()
case = SEVENTH_RECOMMENDERS.case


class _Sessions(nn.Module):
    """A GRU over what was clicked; the others' next things are the wrong ones (GRU4Rec)."""

    def __init__(self, things: int = 90000, width: int = 128) -> None:
        super().__init__()
        self.things, self.read = nn.Embedding(things, width), Recurrent(nn.GRU, width, 2 * width)
        self.leave = nn.Linear(2 * width, width)

    def forward(self, clicked: Tensor, following: Tensor) -> Tensor:
        seen = self.leave(F.dropout(self.read(self.things(clicked)), 0.2)).transpose(0, 1)
        near = seen @ self.things(following).transpose(0, 1).transpose(1, 2)
        right = torch.arange(len(clicked), device=near.device).repeat(near.size(0))
        return F.cross_entropy(near.flatten(0, 1), right)


@case("adagrad", "fp32", 600)
def sessions_of_clicks() -> Spec:
    return Spec(_Sessions(), made(kinds(90000, 20), kinds(90000, 20)), lambda m, *ids: m(*ids))


class _Fields(nn.Module):
    """Vectors for the words of many fields, all in one table."""

    def __init__(self, fields: int, words: int, width: int) -> None:
        super().__init__()
        self.register_buffer("begins", torch.arange(fields) * words)
        self.table = nn.Embedding(fields * words, width)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.table(ids + self.begins)
        return out


class _Outer(nn.Module):
    """Products of all fields with all, made few again by a kernel of one; again with the result (xDeepFM)."""

    def __init__(self, fields: int = 22, width: int = 16, few: int = 64) -> None:
        super().__init__()
        self.fields = _Fields(fields, 15000, width)
        self.few = nn.ModuleList(nn.Conv1d(fields * inputs, few, 1) for inputs in (fields, few, few))
        self.deep, self.head = perceptron(fields * width, 400, 400, 1), nn.Linear(3 * few, 1)

    def forward(self, ids: Tensor) -> Tensor:
        first = self.fields(ids)
        now, kept = first, []
        for few in self.few:
            now = few(torch.einsum("bid,bjd->bijd", first, now).flatten(1, 2)).relu()
            kept.append(now.sum(2))
        return (self.head(torch.cat(kept, 1)) + self.deep(first.flatten(1))).squeeze(1)


@case("adam", "fp32", 1500)
def fields_in_outer_products() -> Spec:
    return Spec(_Outer(), made(kinds(15000, 22), bits()), yes_or_no)


class _Weighed(nn.Module):
    """Products of all pairs of fields, each pair with a weight, beside a perceptron (FwFM)."""

    def __init__(self, fields: int = 39, width: int = 12) -> None:
        super().__init__()
        self.fields, self.alone = _Fields(fields, 12000, width), _Fields(fields, 12000, 1)
        self.register_buffer("pairs", torch.triu_indices(fields, fields, 1))
        self.weigh = nn.Linear(fields * (fields - 1) // 2, 1)
        self.deep = perceptron(fields * width, 512, 256, 1)

    def forward(self, ids: Tensor) -> Tensor:
        known = self.fields(ids)
        products = (known[:, self.pairs[0]] * known[:, self.pairs[1]]).sum(2)
        return (self.weigh(products) + self.deep(known.flatten(1)) + self.alone(ids).sum(1)).squeeze(1)


@case("adam_loop", "amp_bf16", 6000)
def weighed_pairs_of_fields() -> Spec:
    return Spec(_Weighed(), made(kinds(12000, 39), bits()), yes_or_no)


class _Played(nn.Module):
    """The last nine songs as a small picture: kernels of all heights, and some as high as it is (Caser)."""

    def __init__(self, songs: int = 40000, width: int = 96, last: int = 9) -> None:
        super().__init__()
        self.songs, self.people = nn.Embedding(songs, width), nn.Embedding(60000, width)
        self.over = nn.ModuleList(nn.Conv2d(1, 24, (high, width)) for high in range(1, last + 1))
        self.along = nn.Conv2d(1, 6, (last, 1))
        self.join, self.head = nn.Linear(24 * last + 6 * width, width), nn.Linear(2 * width, songs)

    def forward(self, played: Tensor, person: Tensor) -> Tensor:
        picture = self.songs(played).unsqueeze(1)
        seen = [over(picture).relu().amax(2).flatten(1) for over in self.over]
        known = self.join(F.dropout(torch.cat([*seen, self.along(picture).flatten(1)], 1), 0.4)).relu()
        out: Tensor = self.head(torch.cat([known, self.people(person)], 1))
        return out


@case("adam", "amp_fp16", 1200)
def songs_as_pictures() -> Spec:
    return Spec(
        _Played(),
        made(kinds(40000, 9), kinds(60000), kinds(40000)),
        lambda m, played, person, y: F.cross_entropy(m(played, person), y),
    )


@case("lion", "fp32", 8000)
def one_of_all_shops() -> Spec:
    """Bags of seventy words that a person searched; which of 3,000 shops comes next."""
    model = joined(nn.EmbeddingBag(110000, 80, mode="mean"), perceptron(80, 320, 3000))
    return Spec(model, made(kinds(110000, 70), kinds(3000)), classified)
