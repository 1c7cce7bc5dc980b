"""Plans as text, and the progress line."""

import io
import re

import pytest

import cedar
from cedar import col
from cedar.execution.metrics import Metrics
from cedar.report import progress
from cedar.report.progress import Progress


def rows(n=100):
    return cedar.from_items([{"x": i, "y": i} for i in range(n)])


def plan(pipeline):
    """The plan without places in code, which move."""
    return re.sub(r"\s+\S+\.py:\d+", "", pipeline.explain())


def test_a_plan_of_known_counts_reads_like_this():
    pipeline = rows().with_columns(z=col("x") + 1).shuffle(seed=3).batch(32)
    assert plan(pipeline).splitlines() == [
        "LOGICAL PLAN",
        "  batch(32, last='drop')",
        "  shuffle(seed=3, window='256MiB')",
        "  with_columns(z)                                   x => z",
        "  from_items(list of 100)",
        "PHYSICAL PLAN (as written)",
        "  1. read    from_items(list of 100) -> with_columns(z)   [1 split(s), 1 window(s), permuted]",
        "  2. stream  shuffle(seed=3, window='256MiB')",
        "  3. stream  batch(32, last='drop')",
        "  4. task    gather   [a batch a task]",
        "UNITS  3 batches in an epoch",
        "RANKS  contiguous runs of at least 25 units, the same units at any number of ranks",
    ]


def test_a_plan_says_what_unknown_counts_cost():
    text = plan(rows().filter(col("x") > 3).batch(8))
    assert "global: row counts are unknown" in text
    assert "every rank computes the stream and keeps its turns" in text
    assert "local to each rank" in plan(rows().filter(col("x") > 3).batch(8, local=True))


def test_a_shared_pipeline_is_printed_once():
    shared = rows().map(lambda x: x + 1, "x", dtype=int)
    text = plan(cedar.zip(shared.select("x"), shared.select("y")))
    assert text.count("from_items") == 2  # once in each plan
    assert "(shared, see above)" in text


def test_a_plan_warns_of_what_cannot_be_split():
    assert "cannot be split" in cedar.from_iterable(lambda: iter([{"x": 1}])).explain()


def test_a_plan_says_what_a_cache_keeps():
    random = rows().map(lambda x, rng: x, "x", random=True, dtype=int)
    assert "keeps what comes out" not in random.cache("memory").explain()
    mapped = rows().map(lambda x: x, "x", dtype=int).map(lambda x, rng: x, "x", random=True, dtype=int)
    assert "keeps what comes out of map(<lambda>)" in mapped.cache("memory").batch(2).explain()


def test_notebooks_get_escaped_text():
    assert "&gt;" in rows().filter(col("x") > 1)._repr_html_()
    assert rows().batch(2).loader().report()._repr_html_().startswith("<pre>")


def test_explain_runs_nothing():
    calls = []
    pipeline = rows().map(lambda x: calls.append(x) or x, "x").batch(2, last="pad")
    pipeline.explain()
    assert len(pipeline.loader()) == 50
    assert pipeline.count() == 50
    assert calls == []


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_shows_in_a_terminal_only(monkeypatch, terminal):
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(progress, "_QUIET_SECONDS", 0.0)
    metrics = Metrics(rows=1234, seconds={1: 2.0}, labels={0: "read", 1: "map(slow)"})
    with Progress("count") as line:
        line.update(metrics)
    shown = stream.getvalue()
    assert ("1,234 rows" in shown and "map(slow)" in shown) if terminal else shown == ""


def test_progress_is_quiet_for_a_second(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    with Progress("count") as line:
        line.update(Metrics(rows=1))
    assert stream.getvalue() == ""
