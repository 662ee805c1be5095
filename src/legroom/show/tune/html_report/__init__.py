"""A study as one HTML file: parallel coordinates, parameter importance, learning curves, memory, and failed trials."""

from pathlib import Path
from typing import TYPE_CHECKING

from legroom.show.tune.html_report.page_writer import write_page
from legroom.tuning.report.figures import figures_of

if TYPE_CHECKING:
    from legroom.tuning.study import Study


def write(study: "Study", path: str | Path) -> Path:
    """Write the report of a study to `path`. Viewing the report needs neither a network nor a server."""
    return write_page(figures_of(study), Path(path))
