"""The pip command that adds an optional dependency to this installation.

`pip install 'legroom[tune]'` is correct for an installation from a package index. For a checkout, an archive or a
repository, pip needs the same path or URL as for the installation.
"""

import json
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import url2pathname

SOURCES = Path(__file__).resolve().parents[2]
"""The root of the checkout, if this file is in one."""


def install_command(extra: str) -> str:
    """The `pip install` command, quoted for a shell."""
    if (SOURCES / "pyproject.toml").is_file():
        return f"pip install -e {_quoted(SOURCES, extra)}"
    origin = _origin()
    url = origin.get("url", "")
    if "dir_info" in origin:
        folder = Path(url2pathname(urlparse(url).path))
        if folder.is_dir():
            return f"pip install {_quoted(folder, extra)}"
    elif "vcs_info" in origin:
        system, commit = origin["vcs_info"]["vcs"], origin["vcs_info"]["commit_id"]
        return f"pip install {shlex.quote(f'legroom[{extra}] @ {system}+{url}@{commit}')}"
    elif url:
        return f"pip install {shlex.quote(f'legroom[{extra}] @ {url}')}"
    return f"pip install 'legroom[{extra}]'"


def _quoted(folder: Path, extra: str) -> str:
    here = "." if folder == Path.cwd() else str(folder)
    return shlex.quote(f"{here}[{extra}]")


def _origin() -> dict[str, Any]:
    """The path or URL of the installation, as recorded by pip; empty for a package index."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return dict(json.loads(distribution("legroom").read_text("direct_url.json") or "{}"))
    except (PackageNotFoundError, ValueError):
        return {}
