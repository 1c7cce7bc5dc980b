"""Names and values from files in whatever people read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import col
from cedar.cli.tables import profile_table, report_table
from cedar.core.errors import CedarError, RowRef
from cedar.core.printable import escape, one_line, printable
from cedar.engine.metrics import Metrics
from cedar.watch.progress import Progress

NAME = "a\x1b]0;title\x07\x1b[2J\x9b1m\r\nforged  1 row\u202e"
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]|\nforged")


def test_controls_become_escapes_and_other_text_stays() -> None:
    assert printable("naïve\t\N{SNOWMAN}\n\x1b[2J") == "naïve\t\N{SNOWMAN}\n\\x1b[2J"
    assert one_line("a\n\tb") == "a\\n\\tb"
    assert escape("<\x1b>") == "&lt;\\x1b&gt;"


def shown(p: Any, folder: Path) -> dict[str, str]:
    """All that people read of a pipeline and of a run."""
    loader = p.loader(executor="inline")
    assert len(list(loader)) == 1
    report, profile, plan = loader.report(), p.profile(seconds=0.01), p.optimize()
    sheet, described = p.inspect(1), p.describe()
    report.html(folder / "report.html")
    sheet.html(folder / "sheet.html")
    tables = [profile_table(profile), report_table(report)]
    cells = [str(cell) for table in tables for column in table.columns for cell in (column.header, *column.cells)]
    return {
        "explain": p.explain(), "html": p.explain("html"), "mermaid": p.explain("mermaid"),
        "of the run": loader.explain(), "plan": str(plan), "repr": repr(p), "schema": f"{p.schema}{p.schema!r}",
        "profile": str(profile) + profile._repr_html_(), "report": str(report) + report._repr_html_(),
        "page": (folder / "report.html").read_text(), "sheet page": (folder / "sheet.html").read_text(),
        "sheet": str(sheet), "described": str(described) + described._repr_html_(), "tables": "".join(cells),
        "progress": Progress(NAME).text(Metrics()),
    }  # fmt: skip


@pytest.mark.parametrize(
    "add",
    [
        lambda p: p.map(lambda v: v, NAME, dtype=int).select(NAME),
        lambda p: p.with_columns(**{NAME: col(NAME) + 1}).filter(col(NAME) > 0).drop("s"),
        lambda p: p.rename({"s": "t" + NAME}).shuffle(by=NAME),
        lambda p: p.cache("memory").sample(NAME, n=1),
    ],
)
def test_no_name_of_a_column_sends_commands_to_a_terminal(tmp_path: Path, add: Any) -> None:
    table = pa.table({NAME: [1], "s": pa.array([{NAME: NAME}], pa.struct({NAME: pa.string()}))})
    pq.write_table(table, tmp_path / "e.parquet")
    texts = shown(add(cedar.read_parquet(str(tmp_path / "e.parquet"))), tmp_path)
    assert {where: RAW.findall(text) for where, text in texts.items() if RAW.search(text)} == {}


def test_errors_show_names_and_urls_escaped() -> None:
    error = CedarError(f"{NAME} is bad", row=RowRef(0, 0, 1, url=f"s3://{NAME}"))
    assert not re.search("[\x1b\x07\x9b\r]|row  .*\n.*forged", str(error))
