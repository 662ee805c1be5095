"""The language of the output, and the catalogue of Korean texts."""

import ast
import io
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import legroom
from legroom.diagnose.oom import batch_change, retention_advice, saving_advice
from legroom.diagnose.report import growing_lines, leaks
from legroom.show.common.korean import CATALOGUE
from legroom.show.common.language import PLACEHOLDER, output_language, translate

SOURCES = Path(legroom.__file__).parent


@pytest.fixture
def environment(monkeypatch):
    """Sets the environment variables that select the language. Variables that are not passed are unset."""

    def set_variables(**values):
        for name in ("LEGROOM_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
            monkeypatch.delenv(name, raising=False)
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return set_variables


@pytest.mark.parametrize(
    ("variables", "language"),
    [
        ({}, "en"),
        ({"LEGROOM_LANG": "ko"}, "ko"),
        ({"LEGROOM_LANG": "KO"}, "ko"),
        ({"LEGROOM_LANG": "en", "LANG": "ko_KR.UTF-8"}, "en"),
        ({"LEGROOM_LANG": "klingon", "LANG": "ko_KR.UTF-8"}, "en"),
        ({"LEGROOM_LANG": "", "LANG": "ko_KR.UTF-8"}, "ko"),
        ({"LANG": "ko_KR.UTF-8"}, "ko"),
        ({"LANG": "ko"}, "ko"),
        ({"LC_MESSAGES": "ko_KR.UTF-8", "LANG": "en_US.UTF-8"}, "ko"),
        ({"LC_ALL": "C", "LANG": "ko_KR.UTF-8"}, "en"),
        ({"LANG": "kok_IN.UTF-8"}, "en"),  # Konkani
    ],
)
def test_the_variable_then_the_locale_chooses_the_language(environment, variables, language):
    environment(**variables)
    assert output_language() == language


def test_output_without_unicode_is_english(environment, monkeypatch):
    environment(LEGROOM_LANG="ko")
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), encoding="euc-kr"))
    assert output_language() == "en"


def test_sentences_are_translated_with_their_values(environment):
    english = "Use `--batch-size 64` instead of `--batch-size 256`. Tried to allocate 1.50 GiB."
    environment(LEGROOM_LANG="ko")
    assert (
        translate(english)
        == "`--batch-size 256` 대신 `--batch-size 64` 설정을 쓰세요. 1.50 GiB를 할당하려 했습니다."
    )
    environment(LEGROOM_LANG="en")
    assert translate(english) == english


def test_a_text_with_an_unknown_sentence_stays_english(environment):
    environment(LEGROOM_LANG="ko")
    text = "Tried to allocate 1.50 GiB. This sentence is not in the catalogue."
    assert translate(text) == text


def test_english_does_not_load_the_catalogue():
    program = (
        "import sys; from legroom.show.common.language import translate; translate('Next:'); "
        "sys.exit('legroom.show.common.korean' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# --- the catalogue


def test_both_texts_have_the_same_placeholders():
    for english, korean in CATALOGUE.items():
        names = {name for name, _ in PLACEHOLDER.findall(english)}
        assert names == {name for name, kind in PLACEHOLDER.findall(korean) if not kind}, english
        korean.format(**dict.fromkeys(names, "1"))


def test_code_and_commands_are_not_translated():
    for english, korean in CATALOGUE.items():
        assert sorted(english.split("`")[1::2]) == sorted(korean.split("`")[1::2]), english


def literals(node: ast.AST) -> list[str]:
    """Return the texts between the placeholders of a string literal or f-string."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.JoinedStr):
        return [part.value for part in node.values if isinstance(part, ast.Constant)]
    return []


@cache
def code_texts() -> tuple[str, frozenset[str]]:
    """Return all texts of the packages that create reports and explanations, as one string and as a set."""
    files = [*SOURCES.glob("diagnose/*/*.py"), *SOURCES.glob("show/*/*.py"), *SOURCES.glob("memory/*.py")]
    files += [*SOURCES.glob("observe/source/*.py")]
    texts = {
        text
        for file in files
        if file.name != "korean.py"
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        for text in (*literals(node), *placeholder_texts(node))
    }
    return "\0".join(texts), frozenset(texts)


def placeholder_texts(node: ast.AST) -> list[str]:
    """Return the texts between the placeholders of a `str.format` template."""
    is_template = isinstance(node, ast.Constant) and isinstance(node.value, str) and "{" in node.value
    return PLACEHOLDER.sub("\0", node.value).split("\0") if is_template else []


def is_in_code(text: str) -> bool:
    """Return whether a text is part of a text in the code, or a concatenation of the end of one text and further
    texts."""
    joined, _ = code_texts()
    return text in joined or any(
        f"{text[:end]}\0" in f"{joined}\0" and continues(text[end:]) for end in range(1, len(text))
    )


def continues(text: str) -> bool:
    """Return whether a text is the start of a text in the code, or a concatenation of whole texts and such a start."""
    joined, texts = code_texts()
    return f"\0{text}" in f"\0{joined}" or any(
        text[:end] in texts and continues(text[end:]) for end in range(1, len(text))
    )


def test_every_english_text_of_the_catalogue_is_in_the_code():
    for english in CATALOGUE:
        for text in PLACEHOLDER.sub("\0", english).split("\0"):
            assert is_in_code(text), english


def test_a_text_that_is_not_in_the_code_is_noticed():
    assert not is_in_code("Out of memory in the galaxy")


@pytest.mark.parametrize("module", [batch_change, retention_advice, saving_advice, growing_lines, leaks])
def test_all_advice_has_a_translation(module):
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    keys = "\0".join(PLACEHOLDER.sub("\0", english) for english in CATALOGUE)
    documentation = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if id(node) not in documentation:
            for text in literals(node):
                for sentence in text.replace(". ", ".\0").split("\0"):
                    is_path = "→" in sentence  # a reference path, not a sentence
                    if sentence.count(" ") > 2 and not is_path:
                        assert sentence.strip().rstrip(".") in keys
