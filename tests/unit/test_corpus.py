"""The corpus is what its marks say it is."""

from tests.corpus.programs import LINT_WORDS, programs


def test_there_are_enough_programs_of_both_kinds() -> None:
    corpus = programs()
    assert sum(program.leaks for program in corpus) >= 40
    assert sum(not program.leaks for program in corpus) >= 25


def test_every_leaking_program_marks_its_line_holder_and_kind() -> None:
    for program in programs():
        if program.leaks:
            assert program.lines, program.path.name
            assert program.holders, program.path.name
            assert set(program.kind.split("|")) <= {"graph", "tensor", "larger"}, program.path.name
        else:
            assert not program.lines, program.path.name


def test_lint_marks_are_known_words_on_their_lines() -> None:
    for program in programs():
        assert {word for _, word in program.lint} <= set(LINT_WORDS), program.path.name
