"""Explanations of errors in Korean."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len

from legroom.cli import main
from legroom.diagnose.codes import all_pages, translated_page
from legroom.diagnose.explain.explain import Cause, explain, page_parts, parse_page
from legroom.show.common.terminal import render_to_string
from legroom.show.explain.explanation import render_explanation, render_page
from legroom.show.explain.translation import translate_explanation

ERRORS = Path(__file__).parents[3] / "data" / "errors"
TRANSLATED = [code for code in all_pages() if translated_page(code, "ko")]
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 546.00 MiB. GPU 0 has a total capacity of 15.77 GiB "
    "of which 514.19 MiB is free. Including non-PyTorch memory, this process has 15.26 GiB memory in use. Of the "
    "allocated memory 14.60 GiB is allocated by PyTorch, and 310.24 MiB is reserved by PyTorch but unallocated."
)


@pytest.fixture
def korean(monkeypatch):
    monkeypatch.setenv("LEGROOM_LANG", "ko")


def code_of(cause: Cause) -> list[set[str]]:
    return [set(re.findall(r"`([^`]+)`", text)) for text in (cause.cause, cause.check, cause.fix)]


def test_every_page_about_an_error_is_translated():
    assert [code for code in all_pages() if code.startswith("LG7")] == TRANSLATED


@pytest.mark.parametrize("code", TRANSLATED)
def test_a_korean_page_has_the_causes_and_commands_of_the_english_page(code):
    _, english = page_parts(code)
    _, korean = parse_page(translated_page(code, "ko"))
    assert [code_of(cause) for cause in korean] == [code_of(cause) for cause in english]


@pytest.mark.parametrize("code", TRANSLATED)
def test_a_korean_page_fits_80_columns(code, korean):
    text = render_to_string(render_page(all_pages()[code]))
    assert " ".join(text.split()).startswith(f"{code}: {translated_page(code, 'ko').title}")
    assert max(map(cell_len, text.splitlines())) <= 80


def test_an_error_is_explained_in_korean(korean):
    text = render_to_string(render_explanation(explain(OOM)))
    assert " ".join(text.split()).startswith(
        "GPU 0의 메모리가 부족합니다. 546.0 MiB를 할당하려 했지만 15.77 GiB 중 514.2 MiB만 남아 있었습니다. "
        "LG700 GPU 메모리, 확실"
    )
    assert "1. 살아 있는 tensor가 15.77 GiB 중 14.60 GiB를 씁니다." in text
    assert "     확인: `legroom run train.py`는" in text
    assert text.endswith("다음 명령:\n  legroom explain LG700\n")
    assert max(map(cell_len, text.splitlines())) <= 80
    assert "Check" not in text


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        ("RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", "GPU 라이브러리가 실패했습니다."),
        (
            "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x10 and 12x4)",
            "linear layer나 행렬 곱이 입력 feature 12개를 기대했지만 10개를 받았습니다.",
        ),
        (
            "RuntimeError: CUDA error: device-side assert triggered",
            "GPU kernel에 범위를 벗어난 값이 들어왔습니다.",
        ),
        ("ModuleNotFoundError: No module named 'foo'", "패키지가 없거나 버전이 맞지 않습니다."),
        ("train.py: error: unrecognized arguments: --x", "명령줄 인자나 설정이 잘못되었습니다."),
        ("KeyError: 'x'", "KeyError: 메모리 문제가 아니라 프로그램 에러입니다."),
    ],
)
def test_frequent_errors_are_explained_in_korean(error, sentence, korean):
    assert render_to_string(render_explanation(explain(error))).startswith(sentence)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["development", "development_02_host_device", "development_03_families"])
def test_every_explanation_of_a_table_is_korean(name, korean):
    table = json.loads((ERRORS / f"{name}.json").read_text(encoding="utf-8"))
    english = {
        explanation.sentence
        for entry in table
        if translate_explanation(explanation := explain(entry["text"]))[0].sentence == explanation.sentence
    }
    assert not english


def test_without_a_korean_page_the_whole_explanation_is_english(korean, monkeypatch):
    monkeypatch.setattr("legroom.show.explain.translation.translated_page", lambda code, language: None)
    error = "IndexError: Target 10 is out of bounds."
    text = render_to_string(render_explanation(explain(error)))
    monkeypatch.setenv("LEGROOM_LANG", "en")
    assert text == render_to_string(render_explanation(explain(error)))
    assert "Possible causes" in text


def test_a_sentence_without_translation_makes_the_whole_explanation_english(korean):
    explanation = replace(explain(OOM), sentence="An unknown sentence.")
    text = render_to_string(render_explanation(explanation))
    assert text.startswith("An unknown sentence.")
    assert text.isascii()


def test_json_is_the_same_in_korean(capsys, monkeypatch):
    outputs = []
    for language in ("en", "ko"):
        monkeypatch.setenv("LEGROOM_LANG", language)
        for what in ("LG700", OOM):
            assert main(["explain", "--no-checks", "--format", "json", what]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    assert outputs[0].isascii()
