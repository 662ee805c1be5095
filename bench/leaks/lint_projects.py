"""Scores the linter on a folder of projects with a manifest: mistakes found, correct line, healthy projects reported.

    python -m bench.leaks.lint_projects FOLDER [--names]

The manifest is `manifest.json` in the folder, a list of `{"project", "files", "bug", "places"}`. `project` is a folder
with one or several Python files. `places` are pairs of a file and a line that are correct. A mistake is found if a
finding is at most three lines away from a place. `--names` lists the wrong results.
"""

import json
import os
from pathlib import Path
from typing import Any

from bench.lib.command_line import command_line
from bench.lib.table import print_table
from legroom.diagnose.lint.engine import lint_paths

NEAR = 3


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--names", action="store_true")
    options = parser.parse_args()
    manifest = json.loads((options.folder / "manifest.json").read_text())
    rows, wrong = [], []
    for title, is_chosen in (
        ("one file", lambda files: files == 1),
        ("several files", lambda files: files > 1),
    ):
        entries = [entry for entry in manifest if is_chosen(len(entry["files"]))]
        found, exact, healthy = 0, 0, 0
        for entry in entries:
            reported = _reported(options.folder / entry["project"])
            is_near, is_exact = _judge(entry, reported)
            found, exact = found + is_near, exact + is_exact
            healthy += bool(reported) and not entry["bug"]
            if is_exact != entry["bug"] or (reported and not entry["bug"]):
                wrong.append(
                    f"  {entry['project']}: {reported or 'nothing'}, expected {entry.get('places') or 'nothing'}"
                )
        bugs = sum(entry["bug"] for entry in entries)
        rows.append([title, str(bugs), str(found), str(exact), str(len(entries) - bugs), str(healthy)])
    print_table(
        options.folder.name,
        ["projects with", "mistakes", "found", "correct line", "healthy", "reported"],
        rows,
    )
    print("\n".join(wrong if options.names else []))


def _reported(project: Path) -> list[tuple[str, str, int]]:
    findings = lint_paths([str(project)]).findings
    return [(each.code, os.path.relpath(each.file or "", project), each.line or 0) for each in findings]


def _judge(entry: dict[str, Any], reported: list[tuple[str, str, int]]) -> tuple[bool, bool]:
    """Return whether a finding is near a correct place, and whether it is on the correct line."""
    distances = [
        abs(line - expected)
        for _, file, line in reported
        for correct, expected in entry.get("places", [])
        if correct == file and entry["bug"]
    ]
    return min(distances, default=NEAR + 1) <= NEAR, 0 in distances


if __name__ == "__main__":
    main()
