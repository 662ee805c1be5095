"""Sets of measured cases whose models stand beside them, by name.

`sixth`: a smaller one, after the fifth.
`seventh`: by two further authors, after the sixth.
"""

from bench.accuracy.cases.case import CaseSet
from bench.accuracy.cases.unseen_broad.attention import SEVENTH_ATTENTION
from bench.accuracy.cases.unseen_broad.control import SEVENTH_CONTROL
from bench.accuracy.cases.unseen_broad.functions import SEVENTH_FUNCTIONS
from bench.accuracy.cases.unseen_broad.graphs import SEVENTH_GRAPHS
from bench.accuracy.cases.unseen_broad.likelihoods import SEVENTH_LIKELIHOODS
from bench.accuracy.cases.unseen_broad.makers import SEVENTH_MAKERS
from bench.accuracy.cases.unseen_broad.objectives import SEVENTH_OBJECTIVES
from bench.accuracy.cases.unseen_broad.pictures import SEVENTH_PICTURES
from bench.accuracy.cases.unseen_broad.readers import SEVENTH_READERS
from bench.accuracy.cases.unseen_broad.recommenders import SEVENTH_RECOMMENDERS
from bench.accuracy.cases.unseen_broad.recurrent import SEVENTH_RECURRENT
from bench.accuracy.cases.unseen_broad.senses import SEVENTH_SENSES
from bench.accuracy.cases.unseen_broad.signals import SEVENTH_SIGNALS
from bench.accuracy.cases.unseen_broad.tables import SEVENTH_TABLES
from bench.accuracy.cases.unseen_broad.translators import SEVENTH_TRANSLATORS
from bench.accuracy.cases.unseen_broad.writers import SEVENTH_WRITERS
from bench.accuracy.cases.unseen_small.convolutions import SIXTH_CONVOLUTIONS
from bench.accuracy.cases.unseen_small.others import SIXTH_OTHERS
from bench.accuracy.cases.unseen_small.transformers import SIXTH_TRANSFORMERS

CASE_SETS: dict[str, CaseSet] = {
    "sixth": CaseSet.joined(SIXTH_TRANSFORMERS, SIXTH_OTHERS, SIXTH_CONVOLUTIONS),
    "seventh": CaseSet.joined(
        SEVENTH_PICTURES,
        SEVENTH_READERS,
        SEVENTH_RECURRENT,
        SEVENTH_WRITERS,
        SEVENTH_MAKERS,
        SEVENTH_SENSES,
        SEVENTH_TABLES,
        SEVENTH_ATTENTION,
        SEVENTH_GRAPHS,
        SEVENTH_OBJECTIVES,
        SEVENTH_CONTROL,
        SEVENTH_TRANSLATORS,
        SEVENTH_RECOMMENDERS,
        SEVENTH_FUNCTIONS,
        SEVENTH_SIGNALS,
        SEVENTH_LIKELIHOODS,
    ),
}
