"""The distinction between files of the user and files of libraries."""

from pathlib import Path

from legroom.observe.source.user_files import _folders


def test_a_folder_is_recognized_by_its_symbolic_link_and_by_its_real_path(tmp_path: Path) -> None:
    """A virtual environment may be a symbolic link, and code objects contain the path that was used to import them."""
    real, link = tmp_path.resolve() / "real", tmp_path.resolve() / "link"
    real.mkdir()
    link.symlink_to(real)
    assert set(_folders(link)) == {f"{real}/", f"{link}/"}
