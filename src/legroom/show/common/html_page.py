"""Parts that all HTML pages share: the style, the data embedded in a page, and writing the file.

A page is a single file that makes no network requests. A page contains text from captures and from the user's code, and
this text may be malicious. Text is escaped in HTML, and embedded data cannot close its script element.
"""

import json
import webbrowser
from base64 import b64encode
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, TextIO
from zlib import compress

from legroom.arguments import refuse_script
from legroom.errors import UsageError
from legroom.log import one_line
from legroom.units import format_size


def fill_template(
    package: str,
    *,
    title: str,
    style: str,
    scripts: tuple[str, ...],
    name: str,
    data: Any,
    requests_own_server: bool = False,
    **parts: str,
) -> str:
    """Return the page whose body is `page/page.html` in a package. `style` and `scripts` are files in the same folder.
    `data` is written as JSON into the HTML element with the id `name`. `title` and `parts` are inserted as HTML. The
    browser blocks all network requests of the page, unless `requests_own_server` allows requests to the server that
    sent it.
    """
    return Template(_read(__package__, "frame.html")).substitute(
        connect=" connect-src 'self';" if requests_own_server else "",
        title=title,
        style=_read(__package__, "base.css") + _read(package, style),
        body=Template(_read(package, "page.html")).substitute(title=title, **parts).rstrip(),
        name=name,
        data=embedded_json(data),
        script="\n".join([_read(__package__, "base.js"), *(_read(package, each) for each in scripts)]),
    )


def embedded_json(value: Any) -> str:
    """Return JSON for a script element. `<` is escaped, so that no value can close the element."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def compressed(data: bytes) -> str:
    """Return compressed binary data as Base64 text, which the function `unpacked` in `base.js` decodes."""
    return b64encode(compress(data, 6)).decode()


def check_new(path: Path, *, force: bool) -> None:
    """Raise UsageError if the file must not be overwritten. Call this function before reading a large capture. Even
    with `force`, only HTML files are overwritten, so a mistyped path cannot destroy a script or a capture.
    """
    number = "-2" if path.suffix == ".html" else ""  # do not suggest the same path
    another = f"Specify another path, for example `--html {path.stem}{number}.html`."
    if path.is_dir():
        raise UsageError(
            f"{path} is a directory. Specify the path to a file, for example `--html {path / 'run.html'}`."
        )
    refuse_script(path, another)
    if path.is_file() and path.resolve().suffix.lower() not in (".html", ".htm"):
        raise UsageError(
            f"{path} is not an HTML file, and Legroom overwrites only HTML files, even with `--force`. {another}"
        )
    if not force and path.exists():
        raise UsageError(_exists(path))


def _exists(path: Path) -> str:
    return f"{path} exists. Add --force to overwrite the file, or choose another path."


def show_page(path: Path, *, open_page: bool, file: TextIO | None = None) -> None:
    print(f"Wrote {one_line(str(path))} ({format_size(path.stat().st_size)}).", file=file, flush=True)
    if open_page and not webbrowser.open(path.resolve().as_uri()):
        raise UsageError(f"No browser found. Open {path} in a browser.")


def write_new(path: Path, text: str, *, force: bool) -> Path:
    """Write a page. Raises UsageError if the file exists and `force` is False, or if the file cannot be written."""
    check_new(path, force=force)
    try:
        with open(path, "w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(_exists(path)) from None
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror or error}. Choose another path.") from None
    return path


def _read(package: str | None, name: str) -> str:
    assert package is not None
    return (files(package) / "page" / name).read_text(encoding="utf-8")
