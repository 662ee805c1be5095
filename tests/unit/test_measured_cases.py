"""Cases that were measured on a GPU and the models they train stay together."""

import json
from pathlib import Path

import pytest
import torch
from bench.accuracy.cases.case import Case, CaseSet
from bench.accuracy.cases.steps import BUILDERS, CASES, build

TRUTH = Path(__file__).parents[1] / "data" / "truth_peaks.json"


@pytest.mark.parametrize("name", json.loads(TRUTH.read_text())["peaks"])
def test_every_measured_peak_is_of_a_listed_case(name: str) -> None:
    measured = json.loads(TRUTH.read_text())["peaks"][name]
    assert measured.keys() <= {case.key for case in CASES[name]}


def test_every_case_has_a_builder() -> None:
    assert {case.model for cases in CASES.values() for case in cases} <= BUILDERS.keys()


def test_two_models_of_one_name_are_refused() -> None:
    cases = CaseSet()

    def digits() -> None: ...

    cases.case("adam", "fp32", 8)(digits)
    another = type(digits)(digits.__code__, {}, "digits")
    with pytest.raises(ValueError, match="digits"):
        cases.case("sgd", "fp32", 8)(another)


def test_a_step_of_its_own_trains_every_part_with_its_own_optimizer() -> None:
    model, _, step = build(
        Case(model="digit_adversaries", optimizer="adam", precision="fp32", batch=4), "cpu"
    )
    before = [parameter.clone() for parameter in model.parameters()]
    step()
    trained = [not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)]
    assert all(trained)


def test_looking_at_a_batch_after_the_step_ends_in_training_mode() -> None:
    model, _, step = build(
        Case(model="dropped_digits", optimizer="sgdm", precision="fp32", batch=4, evaluate=True), "cpu"
    )
    modes = []
    model.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    step()
    assert (modes, model.training) == ([True, False], True)
