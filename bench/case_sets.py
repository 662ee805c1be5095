"""Sets of measured cases whose models stand beside them, by name.

`sixth`: a smaller one, after the fifth.
`seventh`: by two further authors, after the sixth.
"""

from bench.case import CaseSet
from bench.seventh_attention import SEVENTH_ATTENTION
from bench.seventh_control import SEVENTH_CONTROL
from bench.seventh_functions import SEVENTH_FUNCTIONS
from bench.seventh_graphs import SEVENTH_GRAPHS
from bench.seventh_likelihoods import SEVENTH_LIKELIHOODS
from bench.seventh_makers import SEVENTH_MAKERS
from bench.seventh_objectives import SEVENTH_OBJECTIVES
from bench.seventh_pictures import SEVENTH_PICTURES
from bench.seventh_readers import SEVENTH_READERS
from bench.seventh_recommenders import SEVENTH_RECOMMENDERS
from bench.seventh_recurrent import SEVENTH_RECURRENT
from bench.seventh_senses import SEVENTH_SENSES
from bench.seventh_signals import SEVENTH_SIGNALS
from bench.seventh_tables import SEVENTH_TABLES
from bench.seventh_translators import SEVENTH_TRANSLATORS
from bench.seventh_writers import SEVENTH_WRITERS
from bench.sixth_convolutions import SIXTH_CONVOLUTIONS
from bench.sixth_others import SIXTH_OTHERS
from bench.sixth_transformers import SIXTH_TRANSFORMERS

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
