"""Parsing and formatting sizes."""

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legroom import units
from legroom.errors import UsageError
from legroom.units import GiB, KiB, MiB, TiB, format_size, is_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GiB", 8 * GiB),
        ("8 GiB", 8 * GiB),
        ("  8gib ", 8 * GiB),
        ("24g", 24 * GiB),
        ("24GB", 24 * 10**9),
        ("512MiB", 512 * MiB),
        ("512mb", 512 * 10**6),
        ("1.5GiB", 3 * 512 * MiB),
        (".5k", 512),
        ("64KiB", 64 * KiB),
        ("1kb", 1000),
        ("2t", 2 * TiB),
        ("1TB", 10**12),
        ("4096", 4096),
        ("100b", 100),
        (4096, 4096),
    ],
)
def test_a_size_is_parsed(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "GiB", "eight", "8 gigs", "8GiBs", "-8GiB", "8,5GiB", "1e9", "8 G B", "0x10", "8..5"]
)
def test_an_invalid_size_is_quoted_with_examples(text: str) -> None:
    with pytest.raises(
        UsageError, match="is not a valid size. Examples: `8GiB`, `512MiB`, `24GB`."
    ) as caught:
        parse_size(text)
    assert f"`{text}`" in str(caught.value)


@pytest.mark.parametrize("text", ["0", "0GiB", "0.0001b", 0, -5])
def test_a_size_must_be_positive(text: str | int) -> None:
    with pytest.raises(UsageError, match="must be positive"):
        parse_size(text)


@pytest.mark.parametrize("value", [None, 1.5, True, b"8GiB"])
def test_another_type_is_rejected(value: object) -> None:
    with pytest.raises(UsageError, match=f"not {type(value).__name__}"):
        parse_size(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1023, "1023 B"),
        (KiB, "1.0 KiB"),
        (20 * MiB, "20.0 MiB"),
        (3 * 512 * MiB, "1.50 GiB"),
        (80 * GiB, "80.00 GiB"),
        (2 * TiB, "2.00 TiB"),
        (-20 * MiB, "-20.0 MiB"),
        (0.4, "0 B"),
    ],
)
def test_a_size_is_formatted(size: float, text: str) -> None:
    assert format_size(size) == text


@given(st.integers(1, 1 << 60))
def test_a_formatted_size_can_be_parsed(size: int) -> None:
    assert parse_size(format_size(size)) == pytest.approx(size, rel=0.051)


@given(st.integers(1, 1 << 53))
def test_a_plain_number_is_a_number_of_bytes(size: int) -> None:
    assert parse_size(str(size)) == parse_size(size) == size


def test_the_docstring_examples_are_correct() -> None:
    assert doctest.testmod(units) == (0, 2)


@pytest.mark.parametrize(
    ("text", "expected"), [("8GiB", True), ("4 g", True), ("8", False), ("8x", False), ("train.py", False)]
)
def test_text_with_a_unit_is_a_size(text: str, expected: bool) -> None:
    assert is_size(text) is expected
