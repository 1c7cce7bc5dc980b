"""A pipeline as a picture: every operator once."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

import cedar
from tests.pipeline.toy_plans import rows


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
    assert "batch(4)" in labels
    assert len(list(picture.iter("{http://www.w3.org/2000/svg}line"))) == 5


def test_a_box_has_columns_rows_and_where_it_runs():
    p = rows().with_columns(z=cedar.col("x") + 1).map(lambda x: x, "x").batch(4)
    html = p.explain(format="html").partition("<pre>")[0]
    texts = [each.text for each in ET.fromstring(html).iter("{http://www.w3.org/2000/svg}text")]
    assert texts[texts.index("from_items(list of 100)") + 2].startswith("100 rows, on ")
    at = next(i for i, text in enumerate(texts) if text.startswith("with_columns"))
    assert "z int64" in texts[at + 1]
    assert texts[-1] == "in the loader"
