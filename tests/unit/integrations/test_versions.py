"""A library that is missing or too old is reported in one line with the remedy."""

from importlib import metadata

import pytest

from legroom.integrations import versions
from legroom.integrations.versions import UnsupportedLibrary, check_library


def installed(monkeypatch: pytest.MonkeyPatch, found: dict[str, str]) -> None:
    def version(name: str) -> str:
        if name not in found:
            raise metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(metadata, "version", version)


def test_a_supported_version_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, {"pytorch-lightning": "2.10.0rc1", "transformers": "5.0"})
    assert check_library("lightning", "pytorch-lightning") == "pytorch-lightning"
    assert check_library("transformers") == "transformers"


@pytest.mark.parametrize("name", versions.MINIMUM)
def test_an_old_version_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    installed(monkeypatch, {name: "0.9.12"})
    with pytest.raises(UnsupportedLibrary) as error:
        check_library(name)
    assert str(error.value) == (
        f"Legroom supports {name} {versions.MINIMUM[name]} and newer, but 0.9.12 is installed. "
        f"Run `pip install --upgrade {name}`."
    )


def test_a_missing_library_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, {})
    with pytest.raises(ImportError, match="^lightning is not installed. Run `pip install lightning`.$"):
        check_library("lightning", "pytorch-lightning")
