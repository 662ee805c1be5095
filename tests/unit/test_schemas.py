"""All schema names of the JSON output have the same form and are defined in one module."""

import re
from pathlib import Path

import legroom
from legroom import schemas

NAME = re.compile(r"legroom\.[a-z]+(-[a-z]+)*/[1-9]\d*")
NAMES = [value for key, value in vars(schemas).items() if key.isupper()]


def test_every_schema_has_the_same_form_and_its_own_name() -> None:
    assert all(NAME.fullmatch(name) for name in NAMES)
    assert len(set(NAMES)) == len(NAMES) >= 8


def test_no_other_module_writes_a_schema_name() -> None:
    sources = Path(legroom.__file__).parent
    others = [path for path in sources.rglob("*.py") if path.name != "schemas.py"]
    literal = re.compile(r'"schema": (?!schemas\.)|"legroom\.[a-z-]+/\d')
    assert [path for path in others if literal.search(path.read_text(encoding="utf-8"))] == []
