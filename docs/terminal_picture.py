"""Draws the output of a command on a terminal of 80 columns as an SVG.

    python docs/terminal_picture.py docs/images/oom.svg legroom run --gpu 384MiB examples/digits_cnn.py --batch-size 256

The command runs in an empty folder with a link to `examples`, so that it leaves no files.
"""

import contextlib
import io
import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
COLUMNS = 80
LINES = 24


def main(picture: str, *command: str) -> None:
    shown = " ".join(command)
    output = _run_on_terminal([sys.executable, "-m", *command])
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ {shown}", style="bold"))
    console.print(Text.from_ansi(output))
    svg = console.export_svg(title="legroom", unique_id=Path(picture).stem)
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # fonts from the network
    svg = svg.replace("Fira Code", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono")
    Path(picture).write_text(svg + "\n")


def _run_on_terminal(command: list[str]) -> str:
    """Return the report of a command, without the progress before it and the traceback."""
    master, slave = pty.openpty()
    environment = {
        **os.environ,
        "COLUMNS": str(COLUMNS),
        "LINES": str(LINES),
        "TERM": "xterm-256color",
        "LEGROOM_LANG": "en",
    }
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(ROOT / "examples", Path(folder) / "examples")
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=slave, stdout=slave, stderr=slave
        )
        os.close(slave)
        output = b""
        with contextlib.suppress(OSError):  # how Linux reports that the other end of a terminal was closed
            while piece := os.read(master, 65536):
                output += piece
        process.wait()
    os.close(master)
    lines = output.decode().replace("\r\n", "\n").split("\n")
    first = max(index for index, line in enumerate(lines) if "Out of memory at" in line)
    report = "\n".join(lines[first:]).rstrip()
    return re.sub(r"\nTraceback \(.*?\n(?=Recorded in)", "\n  ...\n", report, flags=re.DOTALL)


if __name__ == "__main__":
    main(*sys.argv[1:])
