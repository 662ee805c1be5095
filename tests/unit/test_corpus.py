"""The comments with expected results in the corpus are complete."""

import pytest
from tests.corpus.programs import LINT_WORDS, programs

pytestmark = pytest.mark.slow


def test_the_corpus_has_enough_leaking_and_healthy_programs() -> None:
    corpus = programs()
    assert sum(program.leaks for program in corpus) >= 40
    assert sum(not program.leaks for program in corpus) >= 25


def test_every_leaking_program_states_line_holder_and_kind() -> None:
    for program in programs():
        if program.leaks:
            assert program.lines, program.path.name
            assert program.holders, program.path.name
            assert set(program.kind.split("|")) <= {"graph", "tensor", "larger"}, program.path.name
        else:
            assert not program.lines, program.path.name


def test_expected_lint_findings_are_known() -> None:
    for program in programs():
        assert {word for _, word in program.lint} <= set(LINT_WORDS), program.path.name
