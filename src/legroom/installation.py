"""How this copy of Legroom came here, and so how an optional part is added to it.

`pip install 'legroom[tune]'` is right for one that came from a package index. A checkout is not there: pip must be given its folder
again, and one that came from elsewhere its address.
"""

import json
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import url2pathname

SOURCES = Path(__file__).resolve().parents[2]
"""The checkout, where this file is in one."""


def install_command(extra: str) -> str:
    """`pip install ...`, as a shell takes it: what adds an optional part to this copy."""
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
    """What pip wrote down where it was given a folder or an address instead of a name; empty otherwise."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return dict(json.loads(distribution("legroom").read_text("direct_url.json") or "{}"))
    except (PackageNotFoundError, ValueError):
        return {}
