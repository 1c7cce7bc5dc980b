"""A contact sheet: shows rows before and after each operator, as text or as an HTML page."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cedar.core.printable import escape, one_line, printable
from cedar.watch import cells

_MAX_COLUMNS = 16  # max columns shown in a cell
_STYLE = (
    ".sheet{font:13px/1.4 system-ui,sans-serif;color:#111;background:#fff}"
    ".sheet table{border-collapse:collapse}.sheet th,.sheet td{text-align:left;vertical-align:top;padding:6px 10px;"
    "border:1px solid #ddd}.sheet th{font-weight:600}.sheet img,.sheet svg{display:block;"
    "image-rendering:pixelated}.sheet small,.sheet .was{color:#555}.sheet small{display:block}"
    ".sheet .drew{color:#92400e}.sheet .end{color:#b91c1c}.sheet p{margin:0 0 4px;max-width:22em;"
    "overflow-wrap:anywhere}.sheet tbody th,.sheet td{min-width:8em}"
)
_SAFE = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@dataclass(frozen=True)
class Cell:
    """One row after an operator.

    Attributes:
        values: the values of all columns; empty if the operator dropped the row or failed.
        shown: names of the columns that the operator wrote, added or changed.
        draws: the operator's random draws for this row, by name.
        note: a remark for the reader.
        end: why this is the row's last cell; "" if it need not be.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    shown: tuple[str, ...] = ()
    draws: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    end: str = ""


@dataclass(frozen=True)
class SheetRow:
    """One row: where it was read from, and a cell for the source and for each operator that it reached."""

    place: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Sheet:
    """The result of ``Pipeline.inspect()``. ``steps``: labels of the source and the operators, in the cells' order.

    ``notes``: which operators are left out, and at which operator the sheet ends.
    """

    steps: tuple[str, ...]
    rows: tuple[SheetRow, ...]
    notes: tuple[str, ...] = ()
    seed: int = 0
    epoch: int = 0

    def html(self, path: str | os.PathLike[str]) -> None:
        """Write the sheet as one HTML page, which needs no network and runs no script.

        Examples:
            >>> import cedar, pathlib
            >>> cedar.from_items([{"x": -1}]).map(abs, "x").inspect().html("sheet.html")
            >>> "map(abs)" in pathlib.Path("sheet.html").read_text()
            True
        """
        page = (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{_SAFE}"><title>cedar: {escape(self._title)}</title>'
            f"</head><body>{self._repr_html_()}</body></html>"
        )
        with open(path, "w", encoding="utf-8", errors="xmlcharrefreplace") as file:
            file.write(page)

    @property
    def _title(self) -> str:
        rows = f"{len(self.rows):,} row{'' if len(self.rows) == 1 else 's'}"
        return f"{rows} before and after each operator, seed {self.seed}, epoch {self.epoch}"

    def __str__(self) -> str:
        wide = max(map(len, self.steps))
        lines = [self._title]
        for row in self.rows:
            lines += ["", row.place]
            for step, cell, before in zip(self.steps, row.cells, (None, *row.cells), strict=False):
                lines.append(f"  {step:<{wide}}  {_line(cell, before)}".rstrip())
        return printable("\n".join([*lines, *([""] if self.notes else []), *self.notes]))

    def _repr_html_(self) -> str:
        heads = "".join(f'<th scope="col">{escape(step)}</th>' for step in self.steps)
        rows = "".join(_row(row, len(self.steps)) for row in self.rows)
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        return (
            f'<div class="sheet"><style>{_STYLE}</style><h2>{escape(self._title)}</h2>'
            f'<table><thead><tr><th scope="col">row</th>{heads}</tr></thead><tbody>{rows}</tbody></table>'
            + (f"<ul>{notes}</ul>" if notes else "")
            + "</div>"
        )


def _draws_text(cell: Cell) -> str:
    return ", ".join(f"{name} {cells.text(value)}" for name, value in cell.draws.items())


def _others(cell: Cell, before: Cell | None) -> list[str]:
    """Describe the columns that a cell does not show: unchanged, removed, or beyond the maximum number."""
    same = [name for name in cell.values if name not in cell.shown]
    gone = [name for name in before.values if name not in cell.values] if before is not None and not cell.end else []
    more = len(cell.shown) - _MAX_COLUMNS
    return [
        *([f"{more} more columns"] if more > 0 else []),
        *([f"as before: {_listed(same)}"] if same else []),
        *([f"gone: {_listed(gone)}"] if gone else []),
    ]


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MAX_COLUMNS
    return ", ".join(map(one_line, names[:_MAX_COLUMNS])) + (f" and {more} more" if more > 0 else "")


# ---- text ------------------------------------------------------------------------------------------------------------


def _line(cell: Cell, before: Cell | None) -> str:
    reported = [f"{one_line(name)} {cells.text(cell.values[name])}" for name in cell.shown[:_MAX_COLUMNS]]
    parts = [*reported, *_others(cell, before), *([cell.note] if cell.note else []), *([cell.end] if cell.end else [])]
    return "; ".join(parts) + (f"  [{_draws_text(cell)}]" if cell.draws else "")


# ---- HTML ------------------------------------------------------------------------------------------------------------


def _row(row: SheetRow, steps: int) -> str:
    row_cells = "".join(_cell(cell, before) for cell, before in zip(row.cells, (None, *row.cells), strict=False))
    left = steps - len(row.cells)
    rest = f'<td colspan="{left}"></td>' if left else ""
    return f'<tr><th scope="row"><p>{escape(row.place)}</p></th>{row_cells}{rest}</tr>'


def _cell(cell: Cell, before: Cell | None) -> str:
    parts = [("drew", escape(f"drew: {_draws_text(cell)}"))] if cell.draws else []
    shown = {one_line(name): cells.markup(one_line(name), cell.values[name]) for name in cell.shown[:_MAX_COLUMNS]}
    parts += [("is", f"<b>{escape(name)}</b> {content}") for name, content in shown.items()]
    parts += [("was", escape(line)) for line in (*_others(cell, before), cell.note) if line]
    parts += [("end", escape(cell.end))] if cell.end else []
    return "<td>" + "".join(f'<div class="{kind}"><p>{content}</p></div>' for kind, content in parts) + "</td>"
