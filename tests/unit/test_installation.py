"""The pip command matches how Legroom was installed."""

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from legroom import errors
from legroom.errors import install_command


class Distribution:
    """A fake distribution with the origin that pip would record."""

    def __init__(self, origin: dict[str, Any] | None) -> None:
        self._origin = origin

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return None if self._origin is None else json.dumps(self._origin)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return a function that simulates an installation from a given origin, outside a checkout."""
    monkeypatch.setattr(errors, "SOURCES", tmp_path / "site-packages")

    def from_origin(origin: dict[str, Any] | None) -> None:
        monkeypatch.setattr(metadata, "distribution", lambda name: Distribution(origin))

    return from_origin


def test_a_checkout_is_installed_from_its_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(errors, "SOURCES", tmp_path)
    assert install_command("tune") == f"pip install -e '{tmp_path}[tune]'"
    monkeypatch.chdir(tmp_path)
    assert install_command("tune") == "pip install -e '.[tune]'"


def test_an_installation_from_a_directory_names_it(installed: Any, tmp_path: Path) -> None:
    folder = tmp_path / "my sources"
    folder.mkdir()
    installed({"url": folder.as_uri(), "dir_info": {}})
    assert install_command("log") == f"pip install '{folder}[log]'"


def test_a_deleted_directory_is_not_named(installed: Any, tmp_path: Path) -> None:
    installed({"url": (tmp_path / "gone").as_uri(), "dir_info": {}})
    assert install_command("log") == "pip install 'legroom[log]'"


def test_an_installation_from_git_names_url_and_commit(installed: Any) -> None:
    installed({"url": "https://host/legroom.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}})
    assert install_command("lint") == "pip install 'legroom[lint] @ git+https://host/legroom.git@abc'"


def test_an_installation_from_an_archive_names_its_url(installed: Any) -> None:
    installed({"url": "https://host/legroom.tar.gz", "archive_info": {}})
    assert install_command("lint") == "pip install 'legroom[lint] @ https://host/legroom.tar.gz'"


def test_an_installation_from_an_index_uses_the_package_name(installed: Any) -> None:
    installed(None)
    assert install_command("tune") == "pip install 'legroom[tune]'"


def test_without_an_installation_the_package_name_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(errors, "SOURCES", tmp_path)
    monkeypatch.setattr(metadata, "distribution", missing)
    assert install_command("tune") == "pip install 'legroom[tune]'"
