"""A study as one HTML file: parallel coordinates, importance, learning curves, memory, what was lost and why."""

from pathlib import Path
from typing import TYPE_CHECKING

from legroom.show.tune.html_report.page_writer import write_page
from legroom.tuning.report.figures import figures_of

if TYPE_CHECKING:
    from legroom.tuning.study import Study


def write(study: "Study", path: str | Path) -> Path:
    """Write a study's page to `path`; it needs neither a network nor a server to be read."""
    return write_page(figures_of(study), Path(path))
