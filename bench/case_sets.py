"""Sets of measured cases whose models stand beside them, by name.

`ordinary`: training steps as people write them, looked at while the present rules were made.
"""

if __package__:
    from bench.case import CaseSet
    from bench.ordinary_makers import ORDINARY_MAKERS
    from bench.ordinary_others import ORDINARY_OTHERS
    from bench.ordinary_pictures import ORDINARY_PICTURES
    from bench.ordinary_texts import ORDINARY_TEXTS
else:  # run as a plain script beside its siblings, on a machine without the package
    from case import CaseSet
    from ordinary_makers import ORDINARY_MAKERS
    from ordinary_others import ORDINARY_OTHERS
    from ordinary_pictures import ORDINARY_PICTURES
    from ordinary_texts import ORDINARY_TEXTS

CASE_SETS: dict[str, CaseSet] = {
    "ordinary": CaseSet.joined(ORDINARY_PICTURES, ORDINARY_MAKERS, ORDINARY_TEXTS, ORDINARY_OTHERS),
}
