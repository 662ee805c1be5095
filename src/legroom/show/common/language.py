"""The language of reports: English, or Korean with `LEGROOM_LANG=ko` or a Korean locale.

The code contains only English. `translate` looks up a finished English text in the catalogue `korean`, whose keys are
English templates with named placeholders. The catalogue is imported only if the output is in Korean. JSON output,
commands and names in code are never translated.
"""

import os
import re
import sys
from collections.abc import Callable
from functools import cache

from legroom.show.common.terminal import supports_unicode

Words = Callable[[str], str]
"""A function that translates a text. For English, the function is `str`."""


def output_language() -> str:
    """Return `ko` or `en`. `LEGROOM_LANG` has priority over the locale. If the output stream does not support Unicode,
    the language is English."""
    wanted = os.environ.get("LEGROOM_LANG") or _locale()
    is_korean = wanted.strip().lower() == "ko"
    return "ko" if is_korean and supports_unicode(sys.stdout) and supports_unicode(sys.stderr) else "en"


def _locale() -> str:
    names = (os.environ.get(variable) for variable in ("LC_ALL", "LC_MESSAGES", "LANG"))
    return re.split(r"[_.@]", next(filter(None, names), ""))[0]


def translate(text: str) -> str:
    """Return the text in the language of the output. A text that is not in the catalogue stays in English."""
    if output_language() == "en":
        return text
    return find_translation(text) or text


@cache
def find_translation(text: str) -> str | None:
    """Return the Korean text for one or more English sentences, or None if one of them is not in the catalogue."""
    whole = _translate_one(text)
    if whole is not None:
        return whole
    for end in reversed([match.end() for match in re.finditer(r"[.:](?= )", text)]):
        first = _translate_one(text[:end])
        rest = find_translation(text[end + 1 :]) if first is not None else None
        if rest is not None:
            return f"{first} {rest}"
    return None


PLACEHOLDER = re.compile(r"\{(\w+)(?::(\w+))?\}")
"""A placeholder in a template: a name and optionally the kind of its values."""
_VALUES = {
    None: r"(?:(?!\. ).)+?",
    "size": r"-?[\d.,]+ (?:B|[KMGTP]iB)",
    "number": r"[\d,]+",
    "term": r"(?:(?!\. ).)+?",
}
"""Regular expressions for the values of each kind of placeholder. A value cannot extend beyond the end of a sentence.
Values of kind `term` are translated too.
"""


def _translate_one(text: str) -> str | None:
    for pattern, kinds, korean in _templates():
        match = pattern.fullmatch(text)
        if match is not None:
            values = {
                name: find_translation(value) or value if kinds[name] == "term" else value
                for name, value in match.groupdict().items()
            }
            return korean.format(**values)
    return None


@cache
def _templates() -> list[tuple[re.Pattern[str], dict[str, str | None], str]]:
    """Return the catalogue as regular expressions with their Korean templates. Templates with more fixed text come
    first.
    """
    from legroom.show.common.korean import CATALOGUE

    def own_length(template: str) -> int:
        return len(PLACEHOLDER.sub("", template))

    return [
        (_pattern(english), {name: kind or None for name, kind in PLACEHOLDER.findall(english)}, korean)
        for english, korean in sorted(CATALOGUE.items(), key=lambda item: -own_length(item[0]))
    ]


def _pattern(template: str) -> re.Pattern[str]:
    parts, position = [], 0
    for match in PLACEHOLDER.finditer(template):
        parts.append(re.escape(template[position : match.start()]))
        parts.append(f"(?P<{match[1]}>{_VALUES[match[2]]})")
        position = match.end()
    return re.compile("".join(parts) + re.escape(template[position:]))
