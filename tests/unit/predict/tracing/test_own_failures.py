"""The distinction between errors of the script, which also occur under `python`, and errors caused by tracing."""

import pytest

from legroom.predict.tracing.own_failures import fails_without_legroom


@pytest.mark.parametrize(
    "error", [ModuleNotFoundError("x"), SyntaxError("x"), FileNotFoundError("x"), IsADirectoryError("x")]
)
def test_errors_that_do_not_depend_on_values_are_errors_of_the_script(error: Exception) -> None:
    assert fails_without_legroom(error, device_used=True)


@pytest.mark.parametrize("error", [ValueError("x"), RuntimeError("x"), TypeError("x"), None])
def test_other_errors_are_errors_of_the_script_only_before_it_uses_the_device(
    error: Exception | None,
) -> None:
    assert fails_without_legroom(error, device_used=False)
    assert not fails_without_legroom(error, device_used=True)


def test_errors_of_legroom_are_not_errors_of_the_script() -> None:
    from legroom.units import parse_size

    with pytest.raises(ValueError, match="not a") as raised:
        parse_size("much")
    assert not fails_without_legroom(raised.value, device_used=False)
