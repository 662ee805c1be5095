"""Translates explanations into the language of the output. An explanation is translated completely or not at all."""

from dataclasses import replace

from legroom.diagnose.codes import CodePage, find_page, translated_page
from legroom.diagnose.explain.explain import Cause, EarlierError, Explanation, page_parts, parse_page
from legroom.show.common.language import Words, find_translation, output_language, translate


def page_to_show(code: str) -> CodePage:
    """Return the documentation page of a code in the language of the output, or in English if the page is not
    translated."""
    page = find_page(code)
    return translated_page(page.code, output_language()) or page


def translate_explanation(explanation: Explanation) -> tuple[Explanation, Words]:
    """Return the explanation in the language of the output, and the function that translates its headings. If a part of
    the explanation has no translation, the explanation and the headings are in English.
    """
    if output_language() == "en":
        return explanation, str
    try:
        return _korean(explanation), translate
    except _MissingTranslationError:
        return explanation, str


class _MissingTranslationError(Exception):
    pass


def _korean(explanation: Explanation) -> Explanation:
    english_meaning, meaning, titles, causes = "", "", {}, {}
    if explanation.code:
        page = _page(explanation.code)
        english_meaning, english_causes = page_parts(explanation.code)
        meaning, korean_causes = parse_page(page)
        titles[f"{find_page(explanation.code).title}."] = f"{page.title}."
        causes = dict(zip(english_causes, korean_causes, strict=True))
    reason = explanation.meaning.removeprefix(english_meaning).strip()
    return replace(
        explanation,
        sentence=titles.get(explanation.sentence) or _sentence(explanation.sentence),
        meaning=" ".join(filter(None, (meaning, _sentence(reason)))),
        causes=tuple(causes.get(each) or _cause(each) for each in explanation.causes),
        here=tuple(map(translate, explanation.here)),  # the results of `legroom doctor` may be English
        earlier=_earlier(explanation.earlier) if explanation.earlier is not None else None,
    )


def _page(code: str) -> CodePage:
    page = translated_page(code, "ko")
    if page is None:
        raise _MissingTranslationError
    return page


def _sentence(text: str) -> str:
    korean = find_translation(text) if text else ""
    if korean is None:
        raise _MissingTranslationError
    return korean


def _cause(cause: Cause) -> Cause:
    return Cause(cause=_sentence(cause.cause), check=_sentence(cause.check), fix=_sentence(cause.fix))


def _earlier(error: EarlierError) -> EarlierError:
    return replace(error, title=_page(error.code).title)
