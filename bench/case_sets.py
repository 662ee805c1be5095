"""Sets of measured cases whose models stand beside them, by name.

`ordinary`: training steps as people write them, looked at while the present rules were made.
`sealed`: others of that kind, which nobody who made rules had seen before they were scored.
`third`: a third set, by another author and sealed in the same way, after the second had been used to mend rules.
`fourth`: the same once more, by yet another author, after the third had been used.
`fifth`: and once more, after the fourth.
`sixth`: a smaller one, after the fifth.
`seventh`: by two further authors, after the sixth.
"""

from bench.case import CaseSet
from bench.fifth_attention import FIFTH_ATTENTION
from bench.fifth_classifiers import FIFTH_CLASSIFIERS
from bench.fifth_dense import FIFTH_DENSE
from bench.fifth_finetuned import FIFTH_FINETUNED
from bench.fifth_makers import FIFTH_MAKERS
from bench.fifth_senses import FIFTH_SENSES
from bench.fifth_series import FIFTH_SERIES
from bench.fifth_signals import FIFTH_SIGNALS
from bench.fifth_tables import FIFTH_TABLES
from bench.fifth_texts import FIFTH_TEXTS
from bench.fourth_adversaries import FOURTH_ADVERSARIES
from bench.fourth_attention import FOURTH_ATTENTION
from bench.fourth_classifiers import FOURTH_CLASSIFIERS
from bench.fourth_dense import FOURTH_DENSE
from bench.fourth_finetuned import FOURTH_FINETUNED
from bench.fourth_makers import FOURTH_MAKERS
from bench.fourth_others import FOURTH_OTHERS
from bench.fourth_senses import FOURTH_SENSES
from bench.fourth_series import FOURTH_SERIES
from bench.fourth_signals import FOURTH_SIGNALS
from bench.fourth_tables import FOURTH_TABLES
from bench.fourth_texts import FOURTH_TEXTS
from bench.ordinary_makers import ORDINARY_MAKERS
from bench.ordinary_others import ORDINARY_OTHERS
from bench.ordinary_pictures import ORDINARY_PICTURES
from bench.ordinary_texts import ORDINARY_TEXTS
from bench.sealed_attention import SEALED_ATTENTION
from bench.sealed_classifiers import SEALED_CLASSIFIERS
from bench.sealed_dense import SEALED_DENSE
from bench.sealed_finetuned import SEALED_FINETUNED
from bench.sealed_makers import SEALED_MAKERS
from bench.sealed_others import SEALED_OTHERS
from bench.sealed_series import SEALED_SERIES
from bench.sealed_tables import SEALED_TABLES
from bench.sealed_texts import SEALED_TEXTS
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
from bench.third_adversaries import THIRD_ADVERSARIES
from bench.third_attention import THIRD_ATTENTION
from bench.third_classifiers import THIRD_CLASSIFIERS
from bench.third_dense import THIRD_DENSE
from bench.third_finetuned import THIRD_FINETUNED
from bench.third_makers import THIRD_MAKERS
from bench.third_others import THIRD_OTHERS
from bench.third_series import THIRD_SERIES
from bench.third_tables import THIRD_TABLES
from bench.third_texts import THIRD_TEXTS

CASE_SETS: dict[str, CaseSet] = {
    "ordinary": CaseSet.joined(ORDINARY_PICTURES, ORDINARY_MAKERS, ORDINARY_TEXTS, ORDINARY_OTHERS),
    "sealed": CaseSet.joined(
        SEALED_CLASSIFIERS,
        SEALED_FINETUNED,
        SEALED_DENSE,
        SEALED_MAKERS,
        SEALED_TEXTS,
        SEALED_ATTENTION,
        SEALED_SERIES,
        SEALED_TABLES,
        SEALED_OTHERS,
    ),
    "third": CaseSet.joined(
        THIRD_CLASSIFIERS,
        THIRD_FINETUNED,
        THIRD_DENSE,
        THIRD_MAKERS,
        THIRD_ADVERSARIES,
        THIRD_TEXTS,
        THIRD_ATTENTION,
        THIRD_SERIES,
        THIRD_TABLES,
        THIRD_OTHERS,
    ),
    "fourth": CaseSet.joined(
        FOURTH_CLASSIFIERS,
        FOURTH_FINETUNED,
        FOURTH_DENSE,
        FOURTH_MAKERS,
        FOURTH_ADVERSARIES,
        FOURTH_SIGNALS,
        FOURTH_TEXTS,
        FOURTH_SENSES,
        FOURTH_ATTENTION,
        FOURTH_SERIES,
        FOURTH_TABLES,
        FOURTH_OTHERS,
    ),
    "fifth": CaseSet.joined(
        FIFTH_CLASSIFIERS,
        FIFTH_FINETUNED,
        FIFTH_DENSE,
        FIFTH_MAKERS,
        FIFTH_SIGNALS,
        FIFTH_TEXTS,
        FIFTH_SENSES,
        FIFTH_ATTENTION,
        FIFTH_SERIES,
        FIFTH_TABLES,
    ),
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
