"""Traces in files: the page of one, one clock for several, and the pages of runs that are served."""

import json
import random
from contextlib import suppress

import pytest

import cedar
from cedar import col
from tests.watch.toy_runs import files, traced


@pytest.mark.heavy
def test_a_file_that_anybody_may_have_written_gives_a_page_or_an_error_that_names_it(tmp_path):
    path, _ = traced(tmp_path, executor="inline")
    good = json.loads(path.read_text())
    rng, odd = random.Random(1), [None, -1, "x", [], {}, 1e400, True, "</script><script>alert(1)</script>", [[1]]]
    bad = tmp_path / "bad.json"
    for _ in range(300):
        found = json.loads(json.dumps(good))
        found["traceEvents"] = found["traceEvents"][:5]
        place = rng.choice([found, found["cedar"], found["cedar"], rng.choice(found["traceEvents"])])
        place[rng.choice(list(place))] = rng.choice(odd)
        bad.write_text(json.dumps(found))
        (tmp_path / "bad.html").unlink(missing_ok=True)
        with suppress(cedar.PipelineError):
            cedar.view_trace(bad, tmp_path / "bad.html")
        if (tmp_path / "bad.html").exists():
            assert "<script>alert" not in (tmp_path / "bad.html").read_text(encoding="utf-8")
    for text in ("", "[]", "{}", '{"traceEvents": [1]}', "[" * 100_000):
        bad.write_text(text)
        with pytest.raises(cedar.PipelineError, match="bad.json"):
            cedar.view_trace(bad)


def test_a_report_has_the_words_of_the_user(tmp_path):
    pipeline = files(tmp_path).filter(col("x") % 10 < 8).batch(100)
    with pipeline.loader(executor="inline", plan="off") as loader:
        list(loader)
        report = loader.report()
    assert 'filter(col("x") % 10 < 8)' in report.operators
    assert 'filter(col("x") % 10 < 8)' in [label for label, *_ in report.graph]


def test_an_event_at_no_time_is_an_error_that_names_the_file(tmp_path):
    bad = tmp_path / "bad.json"
    for ts in ('"abc"', "null", "1" + "0" * 400):
        bad.write_text(f'{{"baseTimeNanoseconds": 5, "traceEvents": [{{"ts": {ts}}}]}}')
        with pytest.raises(cedar.PipelineError, match="bad.json has an event with no time"):
            cedar.merge_traces(tmp_path / "both.json", [bad])
