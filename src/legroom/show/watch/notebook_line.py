"""The progress line of `legroom.watch` in a notebook: one output below the cell, updated in place."""

from typing import Any

from legroom.show.common import notebook_html as html
from legroom.show.watch.bar import ProgressStats, plain_text


class NotebookLine:
    """An output of the running cell. When the notebook is saved, its file contains only the latest content of this
    output.
    """

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, stats: ProgressStats) -> None:
        line = plain_text(stats)
        bar = ""
        if stats.total:
            bar = f'<progress value="{stats.done}" max="{stats.total}" style="width:160px"></progress> '
        content = {"text/plain": line, "text/html": html.block(f"{bar}{html.text(line)}")}
        if self._handle is None:
            from IPython.display import display

            create: Any = display  # without types in some versions
            self._handle = create(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)
