"""``cedar head``, ``schema``, ``count``, ``describe`` and ``inspect``: show what data files and pipelines contain."""

from __future__ import annotations

import argparse
import shutil
from typing import TYPE_CHECKING

from cedar.cli import tables
from cedar.cli.arguments import count, index, on_data
from cedar.cli.target import load_data
from cedar.core.errors import writing
from cedar.core.printable import one_line, printable
from cedar.profile.text import cut

if TYPE_CHECKING:
    from cedar.cli.arguments import Adder

_MAX_TABLE_COLUMNS = 8  # max columns in a table; if there are more, each column is printed as a line


def add(adder: Adder) -> None:
    """Register the commands."""
    made = on_data(adder, "head", "print the first rows", head, " --rows 5")
    made.add_argument("--rows", type=count, default=10, metavar="N", help="how many rows (default: 10)")

    on_data(adder, "schema", "print the names and types of the columns", schema)
    on_data(adder, "count", "print the number of rows, or of batches", lambda it: print(load_data(it.data).count()))
    summary = "print statistics of each column: nulls, range, mean, quantiles"
    on_data(adder, "describe", summary, lambda it: print(load_data(it.data).describe()))

    made = on_data(adder, "inspect", "show rows before and after each operator", inspect, " --rows 8 --out page.html")
    made.add_argument("--rows", type=count, default=4, metavar="N", help="how many rows (default: 4)")
    made.add_argument("--out", metavar="FILE", help="write a page that shows images and sound, instead of text")
    made.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the run (default: 0)")
    made.add_argument("--epoch", type=index, default=0, metavar="E", help="epoch of the run (default: 0)")


def head(chosen: argparse.Namespace) -> None:
    """``cedar head``: print a table, or one line per column if there are many."""
    import polars as pl

    frame = load_data(chosen.data).head(chosen.rows)
    width = shutil.get_terminal_size((120, 0)).columns
    if frame.width > _MAX_TABLE_COLUMNS:
        lines = frame.glimpse(max_items_per_column=chosen.rows, return_type="string").splitlines()
        print(printable("\n".join(cut(line, width) for line in lines)))
        return
    with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_width_chars=width, tbl_hide_dataframe_shape=True):
        print(printable(str(frame)) if frame.width else "no rows")


def schema(chosen: argparse.Namespace) -> None:
    """``cedar schema``: print one column per line."""
    kinds = {one_line(name): str(kind) for name, kind in load_data(chosen.data).schema.items()}
    width = max(map(len, kinds), default=0)
    print(printable("\n".join(f"{name:<{width}}  {kind}" for name, kind in kinds.items())))


def inspect(chosen: argparse.Namespace) -> None:
    """``cedar inspect``."""
    pipeline = load_data(chosen.data)
    with tables.status(f"taking {chosen.rows} row(s) through {chosen.data}"):
        sheet = pipeline.inspect(chosen.rows, seed=chosen.seed, epoch=chosen.epoch)
    if chosen.out is None:
        print(sheet)
        return
    with writing(chosen.out):
        sheet.html(chosen.out)
    print(f"wrote {chosen.out}")
