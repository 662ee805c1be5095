"""53 training steps that were scored before any rule was fitted to them."""

from bench.accuracy.cases.case import CaseSet
from bench.accuracy.cases.unseen_small import convolutions, others, transformers

UNSEEN_SMALL = CaseSet.joined(transformers.CASES, others.CASES, convolutions.CASES)
