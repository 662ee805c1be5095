"""Sweep cases: torch.distributions, with reparameterized samples, densities, entropies and divergences."""

import itertools
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributions as D
from torch import Tensor

from bench.sweep.kit import Case, custom_case

SHAPES = ((40, 6), (4096, 18), (3000, 700))


def cases() -> Iterator[Case]:
    for (name, make), shape in itertools.product(_KINDS.items(), SHAPES):
        label = "x".join(map(str, shape))
        yield custom_case(f"{name}-density", label, lambda m=make, s=shape: _density(m(*s)))
        yield custom_case(f"{name}-sample", label, lambda m=make, s=shape: _sample(m(*s)))
        yield custom_case(f"{name}-entropy", label, lambda m=make, s=shape: _entropy(m(*s)))
    for name in (
        "Normal",
        "Categorical",
        "Beta",
        "Gamma",
        "Bernoulli",
        "Laplace",
        "Dirichlet",
        "MultivariateNormal",
    ):
        for shape in SHAPES[:2]:
            yield custom_case(f"{name}-divergence", "x".join(map(str, shape)), lambda m=_KINDS[name], s=shape: _back(D.kl_divergence(m(*s), m(*s))))  # fmt: skip


def _x(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", requires_grad=True)


def _positive(*shape: int) -> Tensor:
    return _x(*shape).exp() + 0.1


def _back(value: Any) -> None:
    if value.requires_grad:
        value.sum().backward()


def _density(made: Any) -> None:
    _back(made.log_prob(made.sample()))


def _sample(made: Any) -> None:
    _back(made.rsample() if made.has_rsample else made.sample())


def _entropy(made: Any) -> None:
    _back(made.entropy())


def _covariance(rows: int, width: int) -> Tensor:
    width = min(width, 60)
    return torch.eye(width, device="cuda") + 0.01 * _x(min(rows, 300), width, width).tril().abs()


_KINDS: dict[str, Any] = {
    "Normal": lambda *s: D.Normal(_x(*s), _positive(*s)),
    "Normal-independent": lambda *s: D.Independent(D.Normal(_x(*s), _positive(*s)), 1),
    "LogNormal": lambda *s: D.LogNormal(_x(*s), _positive(*s)),
    "HalfNormal": lambda *s: D.HalfNormal(_positive(*s)),
    "Cauchy": lambda *s: D.Cauchy(_x(*s), _positive(*s)),
    "Laplace": lambda *s: D.Laplace(_x(*s), _positive(*s)),
    "Uniform": lambda *s: D.Uniform(_x(*s), _x(*s) + 20, validate_args=False),
    "Gumbel": lambda *s: D.Gumbel(_x(*s), _positive(*s)),
    "StudentT": lambda *s: D.StudentT(_positive(*s) + 3, _x(*s), _positive(*s)),
    "Exponential": lambda *s: D.Exponential(_positive(*s)),
    "Gamma": lambda *s: D.Gamma(_positive(*s), _positive(*s)),
    "Chi2": lambda *s: D.Chi2(_positive(*s)),
    "Beta": lambda *s: D.Beta(_positive(*s), _positive(*s)),
    "Dirichlet": lambda *s: D.Dirichlet(_positive(*s)),
    "Weibull": lambda *s: D.Weibull(_positive(*s), _positive(*s)),
    "Pareto": lambda *s: D.Pareto(_positive(*s), _positive(*s)),
    "Kumaraswamy": lambda *s: D.Kumaraswamy(_positive(*s), _positive(*s)),
    "Bernoulli": lambda *s: D.Bernoulli(logits=_x(*s)),
    "Categorical": lambda *s: D.Categorical(logits=_x(*s)),
    "Categorical-chances": lambda *s: D.Categorical(probs=_positive(*s)),
    "OneHotCategorical": lambda *s: D.OneHotCategoricalStraightThrough(logits=_x(*s)),
    "Multinomial": lambda *s: D.Multinomial(10, logits=_x(*s)),
    "Geometric": lambda *s: D.Geometric(logits=_x(*s)),
    "Poisson": lambda *s: D.Poisson(_positive(*s)),
    "Binomial": lambda *s: D.Binomial(10, logits=_x(*s)),
    "NegativeBinomial": lambda *s: D.NegativeBinomial(10, logits=_x(*s)),
    "RelaxedBernoulli": lambda *s: D.RelaxedBernoulli(torch.tensor(0.5, device="cuda"), logits=_x(*s)),
    "RelaxedOneHotCategorical": lambda *s: D.RelaxedOneHotCategorical(torch.tensor(0.5, device="cuda"), logits=_x(*s)),
    "ContinuousBernoulli": lambda *s: D.ContinuousBernoulli(logits=_x(*s)),
    "MultivariateNormal": lambda rows, width: D.MultivariateNormal(_x(min(rows, 300), min(width, 60)), scale_tril=_covariance(rows, width), validate_args=False),
    "LowRankMultivariateNormal": lambda rows, width: D.LowRankMultivariateNormal(_x(min(rows, 300), min(width, 60)), _x(min(rows, 300), min(width, 60), 4), _positive(min(rows, 300), min(width, 60))),
    "Mixture": lambda *s: D.MixtureSameFamily(D.Categorical(logits=_x(*s)), D.Normal(_x(*s), _positive(*s))),
    "TanhNormal": lambda *s: D.TransformedDistribution(D.Normal(_x(*s), _positive(*s)), [D.TanhTransform(cache_size=1)]),
}  # fmt: skip
