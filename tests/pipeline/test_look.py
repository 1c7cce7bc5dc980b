"""Looks at a pipeline: the first rows, a flow chart, a picture."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import polars as pl
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import col
from tests.report.toy_explained import rows
from tests.report.toy_tables import table


def test_head_is_a_frame_of_the_first_rows(tmp_path):
    path = str(tmp_path / "a.parquet")
    pq.write_table(table(), path)
    p = cedar.read_parquet(path).filter(col("f") > 5)
    rows = p.take(7).to_arrow()
    assert p.head(7).equals(pl.DataFrame(pl.from_arrow(rows)), null_equal=True)
    assert p.batch(4).head(7).equals(p.head(7))
    assert p.repeat().head(2).height == 2
    assert p.head(0).height == 0
    with pytest.raises(cedar.PipelineError):
        p.head(-1)


def test_a_flow_chart_names_every_operator_once():
    shared = rows().map(lambda x: x + 1, "x", dtype=int)
    lines = cedar.zip(shared.select("x"), shared.select('y "quoted"')).explain(format="mermaid").splitlines()
    assert lines[0] == "flowchart TB"
    assert sum("-->" in line for line in lines) == 5
    assert sum("[" in line for line in lines) == 5
    assert "#quot;" in "".join(lines)
    with pytest.raises(cedar.PipelineError, match="mermaid"):
        rows().explain(format="dot")


def test_a_picture_has_a_box_for_every_operator():
    html = cedar.zip(rows().select("x"), rows().select("y")).batch(4).explain(format="html")
    picture = ET.fromstring(html.partition("<pre>")[0])
    labels = [each.text for each in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert "from_items(list of 100) #2" in labels
    assert "batch(4, last='drop')" in labels
    assert len(list(picture.iter("{http://www.w3.org/2000/svg}line"))) == 5
