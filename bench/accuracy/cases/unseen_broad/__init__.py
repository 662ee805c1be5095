"""120 training steps from many fields that were scored before any rule was fitted to them."""

from bench.accuracy.cases.case import CaseSet
from bench.accuracy.cases.unseen_broad import (
    attention,
    derivatives,
    generators,
    graphs,
    likelihoods,
    objectives,
    pictures,
    recurrent,
    reinforcement,
    signals,
    tables,
    texts,
)

UNSEEN_BROAD = CaseSet.joined(
    pictures.CASES,
    texts.CASES,
    recurrent.CASES,
    generators.CASES,
    tables.CASES,
    attention.CASES,
    graphs.CASES,
    objectives.CASES,
    reinforcement.CASES,
    derivatives.CASES,
    signals.CASES,
    likelihoods.CASES,
)
