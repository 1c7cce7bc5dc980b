"""Names and values from files in whatever people read."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import col
from cedar.cli.tables import profile_table, report_table
from cedar.core.errors import CedarError, RowRef
from cedar.core.printable import brief, escape, one_line, printable, redact, redact_url, redacted
from cedar.engine.metrics import Metrics
from cedar.watch.progress import Progress
from tests.core.toy_secrets import TOKEN

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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:pw@host/a?sig=abc", "https://***@host/a?***"),
        ("https://host/a.csv?X-Amz-Signature=abc&x=1", "https://host/a.csv?***"),
        ("s3://me:p@ss@bucket/a@b", "s3://***@bucket/a@b"),
        ("s3://bucket/a?.csv", "s3://bucket/a?.csv"),
        ("simplecache::https://me:pw@host/a", "simplecache::https://***@host/a"),
        ("/local/a?b=c.csv", "/local/a?b=c.csv"),
        ("it failed: 'https://host/a?token=b', sorry", "it failed: 'https://host/a?***', sorry"),
        ("GET /a?sig=abc failed", "GET /a?sig=*** failed"),
        ("aws_secret_access_key=abc", "aws_secret_access_key=***"),
        ("{'password': 'abc'}", "{'password': '***'}"),
        ("Authorization: Bearer abc", "Authorization: Bearer ***"),
        ("column 'token': 5 is not a string", "column 'token': 5 is not a string"),
        ("sort by key=5, token: 3, keys 'a': 'b'", "sort by key=5, token: 3, keys 'a': 'b'"),
        ("AWS_SESSION_TOKEN=abc AWS_SECRET_ACCESS_KEY='a b c'", "AWS_SESSION_TOKEN=*** AWS_SECRET_ACCESS_KEY='***'"),
        ("{'key': 'AKIA', 'secret': 's', 'token': \"t u\"}", "{'key': '***', 'secret': '***', 'token': \"***\"}"),
        ("S3FileSystem(key='AKIA', secret=abc, token=t)", "S3FileSystem(key='***', secret=***, token=***)"),
        ("key=AKIAIOSFODNN7EXAMPLE sas_token=x credential: y", "key=*** sas_token=*** credential: ***"),
        ("{'account_key': 'k==', 'connection_string': 'a;b'}", "{'account_key': '***', 'connection_string': '***'}"),
        ("-s3://me:pw@bucket", "-s3://***@bucket"),
        ("ftp://me:p/w@host/a", "ftp://***@host/a"),
        ("http://host:8080/a@b", "http://host:8080/a@b"),
    ],
)
def test_credentials_are_replaced_and_nothing_else(text: str, shown: str):
    assert redact(text) == shown
    assert redact(shown) == shown


HOSTILE = ("a", "a.", "a-", "://", "x://", "://a:b", "?", "*?", "@", "password", "a_", "key ", "key= ", "'", ", '", "=",
           "://?", "&x-", "x-", "authorization ", "\\", "token=", "secret: '")  # fmt: skip


@pytest.mark.heavy
@pytest.mark.parametrize("unit", HOSTILE)
def test_the_work_grows_with_the_text_and_no_faster(unit: str):
    """A pattern that looks at a text again from each of its places would take minutes for each of these."""
    many = unit * (200_000 // len(unit))
    shown = redact(f"{many}https://me:pw@host/a?b=c password=pw {many}")
    assert len(shown) <= 16_000
    assert "pw" not in shown
    small = unit * 200 + " https://me:pw@host/a?b=c"
    assert redact(redact(small)) == redact(small)
    redact_url(many)


def test_a_long_text_loses_its_middle():
    text = "first " + "x" * 50_000 + " https://me:pw@host " + "y" * 50_000 + " last"
    shown = redact(text)
    assert len(shown) <= 16_000
    assert shown.startswith("first")
    assert shown.endswith("last")
    assert "letters" in shown
    assert redact("x" * 16_000) == "x" * 16_000


def test_a_whole_url_may_hold_spaces():
    assert redact_url("https://me:pw@host/a b?sig=c d") == "https://***@host/a b?***"


def test_causes_are_redacted_in_place_or_replaced():
    class Stubborn(Exception):
        def __str__(self) -> str:
            return f"https://host/?sig={TOKEN}"

    plain = OSError(2, f"https://host/?sig={TOKEN}", f"https://host/?sig={TOKEN}")
    assert redacted(plain) is plain
    assert TOKEN not in str(plain)
    try:
        raise ValueError(f"https://host/?sig={TOKEN}") from Stubborn()
    except ValueError as error:
        replaced = redacted(error)
    printed = "".join(traceback.format_exception(replaced))
    assert TOKEN not in printed
    assert "Stubborn: https://host/?***" in printed
    assert "test_causes_are_redacted" in printed


def test_results_have_a_short_repr() -> None:
    rows = cedar.from_items([{"x": i} for i in range(3)])
    with rows.batch(2).loader() as loader:
        list(loader)
    assert repr(loader.report()).startswith("<Report: 3 rows in 2 deliveries, ")
    assert re.fullmatch(r"<Plan: plan \(\w+\): 2 nodes.*; print\(\) shows all of it>", repr(rows.batch(2).optimize()))
    assert repr(rows.describe()) == str(rows.describe())
    assert brief("a\nb") == "<str: a; print() shows all of it>"
    assert brief("a") == "<str: a>"
