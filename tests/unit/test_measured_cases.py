"""The cases measured on a GPU are consistent with the models that they train."""

import json

import pytest
import torch
from bench.accuracy.cases.build_step import build
from bench.accuracy.cases.case import Case, CaseSet
from bench.accuracy.cases.sets import BUILDERS, CASES
from bench.accuracy.largest_batch_cases import LARGEST_BATCH_CASES
from bench.accuracy.scored_case import MEASURED_PEAKS


@pytest.mark.parametrize("name", json.loads(MEASURED_PEAKS.read_text())["peaks"])
def test_every_measured_peak_belongs_to_a_listed_case(name: str) -> None:
    measured = json.loads(MEASURED_PEAKS.read_text())["peaks"][name]
    assert measured.keys() <= {case.key for case in CASES[name]}


def test_every_case_has_a_builder() -> None:
    cases = [case for cases in CASES.values() for case in cases]
    cases += [capped.case for capped in LARGEST_BATCH_CASES]
    assert {case.model for case in cases} <= BUILDERS.keys()


def test_two_models_with_the_same_name_are_rejected() -> None:
    cases = CaseSet()

    def digits() -> None: ...

    cases.case("adam", "fp32", 8)(digits)
    another = type(digits)(digits.__code__, {}, "digits")
    with pytest.raises(ValueError, match="digits"):
        cases.case("sgd", "fp32", 8)(another)


def test_a_custom_step_trains_every_part_with_its_own_optimizer() -> None:
    model, _, step = build(Case(model="arms_that_reach", optimizer="adam", precision="fp32", batch=4), "cpu")
    before = [parameter.clone() for parameter in model.parameters()]
    step()
    trained = [not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)]
    assert all(trained)


@pytest.mark.slow
def test_evaluation_after_the_step_returns_to_training_mode() -> None:
    model, _, step = build(
        Case(model="coins", optimizer="sgdm", precision="fp32", batch=2, evaluate=True), "cpu"
    )
    modes = []
    model.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    step()
    assert (modes, model.training) == ([True, False], True)
