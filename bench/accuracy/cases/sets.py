"""The sets of measured cases, and the models that they train.

`reference` contains well-known models at two batch sizes each. These cases were visible while the rules were written.
`unseen-small` and `unseen-broad` were written without knowledge of the rules, and were scored once before any rule was
fitted to them. The scores of these two sets are the best prediction of the accuracy for other scripts.
"""

from bench.accuracy.cases.case import Case, CaseSet
from bench.accuracy.cases.largest_batch_models import LARGEST_BATCH_MODELS
from bench.accuracy.cases.reference import REFERENCE
from bench.accuracy.cases.unseen_broad import UNSEEN_BROAD
from bench.accuracy.cases.unseen_small import UNSEEN_SMALL
from bench.lib.models.reference import MODELS

_UNSEEN: dict[str, CaseSet] = {"unseen-small": UNSEEN_SMALL, "unseen-broad": UNSEEN_BROAD}

CASES: dict[str, list[Case]] = {
    "reference": REFERENCE,
    **{name: cases.cases for name, cases in _UNSEEN.items()},
}
BUILDERS = MODELS | LARGEST_BATCH_MODELS
for _set in _UNSEEN.values():
    if _twice := BUILDERS.keys() & _set.builders.keys():
        raise ValueError(f"Two models have the same name: {', '.join(sorted(_twice))}.")
    BUILDERS |= _set.builders
