"""A table whose rows change every second. Only cells that changed are drawn, and the cursor stays on its row."""

from typing import Any, ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from legroom.show.monitor.snapshot import Snapshot
from legroom.show.monitor.tables import Column, fit, sort_rows, visible_columns


class RowTable(DataTable[Text]):
    """Shows the rows of a snapshot in the columns that fit the width."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select_cursor", "Details", key_display="⏎"),
    ]
    DEFAULT_CSS = "RowTable { background: $background; scrollbar-size: 1 1; }"

    def __init__(self, columns: tuple[Column[Any], ...], *, sorted_by: str, id: str) -> None:
        super().__init__(id=id, cursor_type="row", cell_padding=0)
        self._all_columns = columns
        self._shown: list[tuple[Column[Any], int]] = []
        self._keys: list[str] = []
        self._cells: dict[tuple[str, str], str] = {}
        self.sort_column = next(column for column in columns if column.name == sorted_by)
        self.is_reversed = False

    @property
    def sort_text(self) -> str:
        descending = self.sort_column.descending is not self.is_reversed
        return f"sorted by {self.sort_column.name} {'↓' if descending else '↑'}"

    @property
    def selected_key(self) -> str | None:
        return self._keys[self.cursor_row] if 0 <= self.cursor_row < len(self._keys) else None

    def sort_by_next(self) -> None:
        visible = [column for column, _ in self._shown] or list(self._all_columns)
        names = [column.name for column in visible]
        here = names.index(self.sort_column.name) if self.sort_column.name in names else -1
        self.sort_column, self.is_reversed = visible[(here + 1) % len(visible)], False

    def sort_by(self, name: str) -> None:
        """Sort by a column, or reverse the order if the table is already sorted by it."""
        if self.sort_column.name == name:
            self.is_reversed = not self.is_reversed
        else:
            self.sort_column = next(column for column in self._all_columns if column.name == name)
            self.is_reversed = False

    def show(self, rows: list[tuple[str, Any]], snapshot: Snapshot, width: int) -> None:
        self._set_columns(width)
        keys = {id(row): key for key, row in rows}
        ordered = sort_rows([row for _, row in rows], self.sort_column, reverse=self.is_reversed)
        new_keys = [keys[id(row)] for row in ordered]
        if new_keys != self._keys:
            self._replace_rows(new_keys)
        for key, row in zip(new_keys, ordered, strict=True):
            for column, size in self._shown:
                text = column.text(row, snapshot, size)
                if self._cells.get((key, column.name)) != text:
                    self._cells[key, column.name] = text
                    self.update_cell(key, column.name, Text(text, no_wrap=True))

    def _set_columns(self, width: int) -> None:
        shown = visible_columns(self._all_columns, width)
        if [(column.name, size) for column, size in shown] == [(c.name, size) for c, size in self._shown]:
            return
        self.clear(columns=True)
        self._shown, self._keys, self._cells = shown, [], {}
        for position, (column, size) in enumerate(shown):
            gap = 1 if position < len(shown) - 1 else 0
            title = Text(fit(column.title, size, right=column.right))
            self.add_column(title, width=size + gap, key=column.name)

    def _replace_rows(self, keys: list[str]) -> None:
        selected, position = self.selected_key, self.cursor_row
        offset = self.scroll_offset
        self.clear()
        self._keys, self._cells = keys, {}
        for key in keys:
            self.add_row(*(Text("") for _ in self._shown), key=key)
        if keys:
            row = keys.index(selected) if selected in keys else min(max(position, 0), len(keys) - 1)
            self.move_cursor(row=row, animate=False, scroll=False)
            self.scroll_to(y=offset.y, animate=False)
