"""The terminal interface of the monitor, built with Textual.

The driver may block while the state of the machine is read, so a separate thread reads the state and the screen stays
responsive. All text from other programs is a `Text` object, so Textual does not interpret markup in it.
"""

import threading
from collections.abc import Callable
from typing import ClassVar

from rich.console import RenderableType
from rich.text import Text
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.events import Resize
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from legroom.log import log
from legroom.show.monitor.details import render_details
from legroom.show.monitor.history import History
from legroom.show.monitor.panel import render_panel
from legroom.show.monitor.row_table import RowTable
from legroom.show.monitor.snapshot import Sampler, Snapshot
from legroom.show.monitor.tables import PROCESS_COLUMNS, RUN_COLUMNS, matching_processes, matching_runs
from legroom.show.monitor.text import NO_PROCESSES, finding_lines

HELP = """\
↑ ↓ PgUp PgDn   select a process or a run
Tab             switch between runs and processes
Enter           details of the selected process
s               sort by the next column
r               reverse the order
/               filter by command, user, PID or GPU (gpu0)
Esc             clear the filter, close a window
?               this help
q               quit

With the mouse: click a heading to sort, a row to select it, and the selected row for details.

MEM turns yellow at 75% and red at 90%. N/A means that the value is not available.
TREND/STEP is the growth of allocated memory. `legroom explain CODE` explains a finding.
"""


class Window(ModalScreen[None]):
    """A window on top of the screen, which Escape, Enter or q closes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q,question_mark", "dismiss", "Close", show=True),
    ]
    DEFAULT_CSS = """
    Window { align: center middle; }
    Window > VerticalScroll { width: 90%; max-width: 100; height: auto; max-height: 90%; border: round $accent; padding: 0 1;
        background: $surface; }
    Window Static { width: 100%; height: auto; }
    """

    def __init__(self, title: str, content: Callable[[], RenderableType]) -> None:
        super().__init__()
        self._title = title
        self._content = content

    def compose(self) -> ComposeResult:
        scroll = VerticalScroll(Static(self._content(), id="content"))
        scroll.border_title = self._title
        scroll.border_subtitle = "Esc closes"
        yield scroll

    def update(self) -> None:
        self.query_one("#content", Static).update(self._content())


class MonitorApp(App[None]):
    TITLE = "legroom monitor"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { overflow: hidden; }
    #machine { height: auto; max-height: 60%; scrollbar-size: 1 1; }
    #machine Static { height: auto; }
    .title { height: 1; text-style: bold; margin-top: 1; }
    #runs { height: auto; max-height: 9; }
    #findings { height: auto; max-height: 3; color: $warning; }
    #processes { height: 1fr; min-height: 3; }
    #filter { height: 1; border: none; padding: 0 1; display: none; }
    #filter.open { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("s", "sort", "Sort"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("r", "reverse", "Reverse", show=False),
        Binding("escape", "clear_filter", "Clear filter", show=False),
    ]

    def __init__(self, sampler: Sampler, *, interval: float = 1.0) -> None:
        super().__init__()
        self._sampler = sampler
        self._interval = interval
        self._history = History()
        self._snapshot: Snapshot | None = None
        self._wanted = ""
        self._reader: threading.Thread | None = None
        self._texts: dict[str, Text] = {}
        """A dict that maps the selector of each part of the screen to the text of that part."""

    # --- the screen

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="machine", can_focus=False):
            yield Static(Text("Reading the machine's state …"), id="panel")
        yield Static(id="runs-title", classes="title")
        yield RowTable(RUN_COLUMNS, sorted_by="script", id="runs")
        yield Static(id="findings")
        yield Static(id="processes-title", classes="title")
        yield RowTable(PROCESS_COLUMNS, sorted_by="GPU memory", id="processes")
        yield Input(placeholder="filter: command, user, PID, gpu0", id="filter", compact=True)
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self._processes.focus()
        self._read()
        self.set_interval(self._interval, self._read_again)

    @property
    def _processes(self) -> RowTable:
        return self.screen_stack[0].query_one("#processes", RowTable)

    @property
    def _runs(self) -> RowTable:
        return self.screen_stack[0].query_one("#runs", RowTable)

    @property
    def _focused_table(self) -> RowTable:
        return self._runs if self._runs.has_focus else self._processes

    def _static(self, id: str) -> Static:
        return self.screen_stack[0].query_one(id, Static)

    def _set(self, id: str, text: Text) -> None:
        """Set the text of the widget `id`. The layout is the slowest part of an update, so it is recomputed only if
        the size of the text changes.
        """
        before = self._texts.get(id)
        if text != before:
            self._texts[id] = text
            same_size = before is not None and _line_lengths(before) == _line_lengths(text)
            self._static(id).update(text, layout=not same_size)

    # --- reading

    def _read_again(self) -> None:
        if self._reader is None or not self._reader.is_alive():  # otherwise the driver has not answered yet
            self._read()

    def _read(self) -> None:
        # A worker of Textual would delay the exit until the driver answers. A daemon thread does not.
        self._reader = threading.Thread(target=self._read_on_thread, name="legroom-monitor", daemon=True)
        self._reader.start()

    def _read_on_thread(self) -> None:
        try:
            snapshot = self._sampler.read()
            self.call_from_thread(self._add, snapshot)
        except (
            Exception
        ):  # the screen was closed, or a value has an unexpected form: the next reading may work
            log.debug("The machine's state could not be read.", exc_info=True)

    def _add(self, snapshot: Snapshot) -> None:
        self._history.add(snapshot)
        self._snapshot = snapshot
        self._show()

    # --- showing

    def _show(self) -> None:
        snapshot = self._snapshot
        if snapshot is None or not self.screen_stack:
            return
        width, height = self.size.width, self.size.height
        self._set("#panel", render_panel(snapshot, self._history, width, height=max(height // 2, 4)))
        runs = matching_runs(snapshot.runs, self._wanted)
        self._runs.show([(f"run:{run.pid}", run) for run in runs], snapshot, width)
        findings = finding_lines(snapshot)
        for widget, visible in (
            (self._runs, bool(snapshot.runs) and height >= 12),
            (self._static("#runs-title"), bool(snapshot.runs) and height >= 12),
            (self._static("#findings"), bool(findings) and height >= 18),
        ):
            widget.display = visible
        self._set("#findings", Text("\n").join(findings[:-1]))
        rows = matching_processes(snapshot.processes, self._wanted)
        self._processes.show([(row.key, row) for row in rows], snapshot, width)
        self._show_titles(len(runs), len(rows))
        if isinstance(self.screen, Window):
            self.screen.update()

    def _show_titles(self, runs: int, processes: int) -> None:
        filtered = f"  filter: {self._wanted}" if self._wanted else ""
        self._set("#runs-title", _title("Runs", runs, self._runs.sort_text))
        empty = "" if processes or self._wanted else NO_PROCESSES
        self._set(
            "#processes-title",
            Text(empty, style="dim", no_wrap=True, overflow="ellipsis")
            if empty
            else _title("Processes", processes, f"{self._processes.sort_text}{filtered}"),
        )

    def on_resize(self, event: Resize) -> None:
        self.call_after_refresh(self._show)  # `size` is the old size until then

    # --- keys

    def action_sort(self) -> None:
        self._focused_table.sort_by_next()
        self._show()

    def action_reverse(self) -> None:
        table = self._focused_table
        table.sort_by(table.sort_column.name)
        self._show()

    def action_filter(self) -> None:
        box = self.query_one("#filter", Input)
        box.add_class("open")
        box.focus()

    def action_clear_filter(self) -> None:
        box = self.query_one("#filter", Input)
        box.value = self._wanted = ""
        self._close_filter()

    def action_details(self) -> None:
        key = self._focused_table.selected_key
        if key is None or self._snapshot is None:
            return
        pid = int(key.rpartition(":")[2])

        def content() -> RenderableType:
            assert self._snapshot is not None
            return render_details(pid, self._snapshot)

        self.push_screen(Window(f"Process {pid}", content))

    def action_help(self) -> None:
        self.push_screen(Window("Keys", lambda: Text(HELP)))

    def _close_filter(self) -> None:
        self.query_one("#filter", Input).remove_class("open")
        self._processes.focus()
        self._show()

    @on(Input.Changed)
    def _filter_changed(self, event: Input.Changed) -> None:
        self._wanted = event.value
        self._show()

    @on(Input.Submitted)
    def _filter_submitted(self) -> None:
        self._close_filter()

    @on(DataTable.RowSelected)
    def _row_selected(self) -> None:
        self.action_details()

    @on(DataTable.HeaderSelected)
    def _header_selected(self, event: DataTable.HeaderSelected) -> None:
        table = event.data_table
        if isinstance(table, RowTable) and event.column_key.value is not None:
            table.sort_by(event.column_key.value)
            self._show()


def _line_lengths(text: Text) -> list[int]:
    return [len(line) for line in text.plain.split("\n")]


def _title(name: str, count: int, order: str) -> Text:
    title = Text(f"{name} ({count})", no_wrap=True, overflow="ellipsis")
    title.append(f"  {order}", style="dim not bold")
    return title
