"""Plans as text, and the progress line."""

import io
import re
import sys
import types
from dataclasses import replace
from xml.etree import ElementTree as ET

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import col
from cedar.control.timeline import Spent, Timeline
from cedar.engine.metrics import Metrics
from cedar.operators.expressions import Select
from cedar.plan.data import Decision, Plan, Prediction
from cedar.plan.graph import Node, walk
from cedar.plan.scan import Scan
from cedar.profile import Machine, OperatorProfile, Profile
from cedar.report import progress
from cedar.report.explain import explain, explain_html
from cedar.report.progress import Progress


def rows(n=100):
    return cedar.from_items([{"x": i, "y": i} for i in range(n)])


def plan(pipeline):
    """The plan without places in code, which move."""
    return placeless(pipeline.explain())


def placeless(text):
    return re.sub(r" +\S+\.py:\d+$", "", text, flags=re.MULTILINE)


def test_a_plan_of_known_counts_reads_like_this():
    pipeline = rows().with_columns(z=col("x") + 1).shuffle(seed=3).batch(32)
    assert placeless(explain(pipeline.node)).splitlines() == [
        "LOGICAL PLAN",
        "  from_items(list of 100)",
        "  with_columns(z)                   x => z",
        "  shuffle(seed=3, window='256MiB')",
        "  batch(32, last='drop')",
        'COST   not measured yet: p.profile() measures, or a run under plan="auto" (then loader.explain())',
        "PHYSICAL PLAN (as written)",
        "  1. read    from_items(list of 100) -> with_columns(z)   [1 split(s), 1 window(s), permuted]",
        "  2. stream  shuffle(seed=3, window='256MiB')",
        "  3. stream  batch(32, last='drop')",
        "  4. task    gather   [a batch a task]",
        "UNITS  3 batches in an epoch",
        "RANKS  contiguous runs of at least 25 units, the same units at any number of ranks",
    ]


def test_a_plan_says_what_unknown_counts_cost():
    even = rows().filter(col("x") > 3)
    assert "keeps its turns: from_items(list of 100) has 1 piece(s)" in plan(even.batch(8)).replace("\n       ", " ")
    both = rows(8000).filter(col("x") > 3)
    assert "each rank reads splits of its own" in plan(both.batch(8))
    assert "keeps its turns: take(9) counts rows" in plan(both.take(9).batch(8)).replace("\n       ", " ")
    assert "global: it counts rows" in plan(both.take(9).batch(8))
    assert "local to each rank" in plan(both.take(9, local=True).batch(8))


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
    report = rows().filter(col("x") > 1).batch(2).loader().report()
    assert "&gt;" in report._repr_html_()


def test_explain_runs_nothing():
    calls = []
    pipeline = rows().map(lambda x: calls.append(x) or x, "x").batch(2, last="pad")
    pipeline.explain()
    assert len(pipeline.loader()) == 50
    assert pipeline.count() == 50
    assert calls == []


# ---- plans -----------------------------------------------------------------------------------------------------------


def decode(x):
    return x + 1


@pytest.fixture
def log(tmp_path, monkeypatch):
    """Parquet files at a relative place, so that texts are the same everywhere."""
    monkeypatch.chdir(tmp_path)
    table = pa.table({name: pa.array(range(100), pa.int64()) for name in ("label", "x", "y")})
    (tmp_path / "log").mkdir()
    pq.write_table(table, tmp_path / "log" / "a.parquet")
    return cedar.read_parquet("log")


def common(log):
    """The pipeline that everybody has, its rewritten graph, and what was measured of it."""
    pipeline = log.filter(col("label") == 1).map(decode, "x", into="u", dtype=int).shuffle(seed=1).batch(32)
    nodes = list(walk(pipeline.node))
    current = Node(Scan(nodes[0].operator.source, ("label", "x"), (nodes[1],)), origin=nodes[0], place="threads")
    for node, place in zip(nodes[2:], ("processes", "", ""), strict=True):
        current = Node(node.operator, (current,), origin=node, place=place)
    figures = {
        0: OperatorProfile("read_parquet(log)", 3, 3000, 3e-6, 3e-6, 1, 0, 24),
        1: OperatorProfile("filter", 3, 3000, 1e-7, 1e-7, 0.21, 24, 24),
        2: OperatorProfile("map(decode)", 3, 630, 1.23e-4, 1e-4, 1, 24, 32),
    }
    profile = Profile("", figures, Machine(2, 1 << 30), 3000, 0.1)
    decisions = (
        Decision("scan_columns", "read_parquet(log)", False, "all columns are delivered"),
        Decision("push_filter", "filter below shuffle", True, "rows are ordered by their keys"),
        Decision("scan_filter", "filter into read_parquet(log)", True, "row groups whose statistics exclude it are "
                 "not read at all"),
    )  # fmt: skip
    prediction = Prediction(12345.6, "cores", more={"one more core": 0.38, "twice the storage": 0.001})
    return pipeline, Plan(pipeline.node, current, decisions, prediction, "exact", "threads", 2, profile)


def test_the_common_pipeline_before_anything_was_measured(log):
    pipeline, _ = common(log)
    assert "applied  scan_filter" in pipeline.explain()
    assert placeless(explain(pipeline.node)).splitlines() == [
        'NOTE   row counts are unknown; known with loader(counts="exact"), which reads 33% of the bytes first',
        "LOGICAL PLAN",
        "  read_parquet(log)",
        '  filter(col("label") == 1)         label => -',
        "  map(decode)                       x => u",
        "  shuffle(seed=1, window='256MiB')",
        "  batch(32, last='drop')",
        'COST   not measured yet: p.profile() measures, or a run under plan="auto" (then loader.explain())',
        "PHYSICAL PLAN (as written)",
        '  1. read    read_parquet(log) -> filter(col("label") == 1)   [1 split(s), 1 window(s), permuted]',
        "  2. task    map(decode)   [small tasks, by measured time]",
        "  3. stream  shuffle(seed=1, window='256MiB')",
        "  4. stream  batch(32, last='drop')",
        "  5. task    gather   [a batch a task]",
        "UNITS  an unknown number of batches in an epoch",
        "RANKS  every rank computes the stream and keeps its turns: read_parquet(log) has 1 piece(s) that can",
        "       be read alone; write more, smaller files",
    ]


def test_the_common_pipeline_planned_and_measured(log):
    pipeline, chosen = common(log)
    text = explain(
        pipeline.node,
        chosen,
        cache=["cache('auto'): miss, the first run"],
        measured=11000.0,
        run="9,000 rows/s; bottleneck: the trainer",
    )
    lines = placeless(text).splitlines()
    assert lines[:9] == [
        'NOTE   row counts are unknown; known with loader(counts="exact"), which reads 33% of the bytes first',
        "COST   map(decode) 89%, read_parquet(log) 10%",
        "LOGICAL PLAN                                    us/row  keep  bytes  share",
        "  read_parquet(log)                                  3     1   24 B    10%",
        '  filter(col("label") == 1)         label => -     0.1  0.21   24 B     0%',
        "  map(decode)                       x => u         123     1   32 B    89%",
        "  shuffle(seed=1, window='256MiB')",
        "  batch(32, last='drop')",
        "PHYSICAL PLAN (exact search, 2 worker(s))",
    ]
    stages = [line for line in lines if re.match(r" +\d\.", line)]
    assert stages[0].startswith('  1. read    threads    read_parquet(log) {2 of 3 columns; where col("label") == 1}')
    assert "  2. task    processes  map(decode)   [small tasks, by measured time]" in stages
    assert "  3. stream             shuffle(seed=1, window='256MiB')" in stages
    assert lines[next(i for i, line in enumerate(lines) if line.startswith("RULES")) :] == [
        "RULES  applied  push_filter: filter below shuffle  (rows are ordered by their keys)",
        "       applied  scan_filter: filter into read_parquet(log)  (row groups whose statistics exclude it",
        "       are not read at all)",
        "       refused  scan_columns: read_parquet(log)  (all columns are delivered)",
        "PREDICTION  12,300 rows/s; bottleneck: cores; measured: -11%; one more core: +38%",
        "RUN    9,000 rows/s; bottleneck: the trainer",
        "CACHE  cache('auto'): miss, the first run",
        "UNITS  an unknown number of batches in an epoch",
        "RANKS  every rank computes the stream and keeps its turns: read_parquet(log) has 1 piece(s) that can",
        "       be read alone; write more, smaller files",
    ]


@pytest.mark.parametrize("many", [0, 50])
def test_the_common_pipeline_fits_a_screen(log, many):
    pipeline, chosen = common(log)
    more = tuple(Decision("common", f"subexpression {i} " + "x" * 90, i % 2 == 0, "why" * 40) for i in range(many))
    for shown in (None, chosen, replace(chosen, decisions=(*chosen.decisions, *more)), Plan.as_written(pipeline.node)):
        lines = explain(pipeline.node, shown, cache=["cache('auto'): miss, the first run"] * 3).splitlines()
        assert len(lines) <= 24
        assert max(map(len, lines)) <= 100


def test_long_lists_of_rules_are_shortened(log):
    pipeline, chosen = common(log)
    decisions = tuple(Decision("filter_order", f"filter {i}", i > 7) for i in range(10))
    lines = explain(pipeline.node, replace(chosen, decisions=decisions)).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("RULES"))
    assert lines[start : start + 6] == [
        "RULES  applied  filter_order: filter 8",
        "       applied  filter_order: filter 9",
        "       refused  filter_order: filter 0",
        "       refused  filter_order: filter 1",
        "       refused  filter_order: filter 2",
        "       ... 5 more: print(plan)",
    ]
    assert "RULES  none applied, none refused" in explain(pipeline.node, replace(chosen, decisions=()))


def test_a_plan_that_more_hardware_would_not_help(log):
    pipeline, chosen = common(log)
    stuck = Prediction(0.5, "one task at a time", more={"one more core": 0.0})
    text = explain(pipeline.node, replace(chosen, prediction=stuck))
    assert "PREDICTION  0.5 rows/s; bottleneck: one task at a time; more hardware would not help" in text


def test_wide_pipelines_stay_within_a_hundred_columns():
    wide = cedar.from_items([{f"column_{i}": i for i in range(60)}])
    wide = wide.select(*[f"column_{i}" for i in range(50)]).with_columns(
        **{f"new_{i}": col("column_1") for i in range(9)}
    )
    wide = wide.filter((col("column_1") > 1) & (col("column_2") < 5) & (col("column_3") > 2) | (col("column_4") > 2))
    for _ in range(6):
        wide = wide.map(decode, "column_1", dtype=int)
    joined = cedar.concat(cedar.concat(wide, wide), wide).batch(4)
    lines = joined.explain().splitlines()
    assert max(map(len, lines)) <= 100
    assert sum("map(decode) #6" in line for line in lines) >= 2


def test_a_selection_that_the_optimizer_put_in_is_shown(log):
    pipeline, chosen = common(log)
    batch, shuffle = chosen.root, chosen.root.inputs[0]
    kept = Node(Select(("label", "x", "u")), shuffle.inputs)
    root = replace(batch, inputs=(replace(shuffle, inputs=(kept,)),))
    text = explain(pipeline.node, replace(chosen, root=root))
    assert "map(decode) -> select(label, x, u)" in text
    assert "select" not in text.partition("PHYSICAL")[0]


def test_notebooks_see_the_plan(log):
    pipeline, chosen = common(log)
    html = explain_html(pipeline.node, chosen)
    assert html.startswith("<svg")
    assert "<pre>NOTE   row counts" in html
    assert "\nCOST   map(decode)" in html
    assert "x =&gt; u" in html
    assert "exact search" in html


def test_figures_of_a_profile_without_a_plan(log):
    pipeline, chosen = common(log)
    text = explain(pipeline.node, profile=chosen.profile)
    assert "us/row" in text
    assert "not measured yet" not in text


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_shows_in_a_terminal_only(monkeypatch, terminal):
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(progress, "_QUIET_SECONDS", 0.0)
    time = Timeline({("operator", (1,)): Spent(2.0, 2.0)}, capacity=2.0, elapsed=2.0, waited=2.0)
    metrics = Metrics(time, rows=1234, labels={0: "read", 1: "map(slow)"})
    with Progress("count") as line:
        line.update(metrics)
    shown = stream.getvalue()
    told = "1,234 rows, 617 rows/s, waited for data 100%, bottleneck: map(slow)"
    assert (told in " ".join(shown.split())) if terminal else shown == ""


def test_progress_shows_percent_and_time_left_where_counts_are_known(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(progress, "_QUIET_SECONDS", 0.0)
    with Progress("loader", lambda: (25, 100)) as line:
        line.update(Metrics(Timeline(elapsed=50.0), rows=1234))
    assert "25%, 2:30 left" in stream.getvalue()
    with Progress("loader", lambda: (25, None)) as line:
        line.update(Metrics(rows=99))
    assert "99 rows, 0 rows/s" in stream.getvalue()


def test_a_loader_knows_its_position_and_starts_anew_with_each_epoch():
    loader = cedar.from_items([{"x": i} for i in range(10)]).batch(2).loader(executor="inline")
    seen = [loader.position() for _ in loader]
    assert seen == [(n, 5) for n in range(1, 6)]
    assert loader.position() == (0, 5)
    unknown = cedar.from_items([{"x": i} for i in range(10)]).filter(lambda x: x > 2, "x").loader(executor="inline")
    assert [unknown.position() for _ in unknown][-1] == (7, None)


def test_progress_shows_in_a_notebook(monkeypatch):
    shown = []
    handle = types.SimpleNamespace(update=lambda data, raw: shown.append(data["text/plain"]))
    made = types.SimpleNamespace(display=lambda data, raw, display_id: handle)
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", made)
    monkeypatch.setattr(progress, "_QUIET_SECONDS", 0.0)
    with Progress("loader", lambda: (1, 2)) as line:
        line.update(Metrics(Timeline(elapsed=2.0), rows=5))
    assert len(shown) == 1
    assert "5 rows, 50%, 0:02 left" in shown[0]


def test_progress_is_quiet_for_a_second(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    with Progress("count") as line:
        line.update(Metrics(rows=1))
    assert stream.getvalue() == ""


def test_expressions_are_shown_as_they_were_written():
    # fmt: off
    written = rows().filter(
        col("x") * 2  % 10 < 8,
    ).with_columns(z=col("x") + 1).select("z", w=col("z") ** 2)
    # fmt: on
    logical = written.explain().partition("COST")[0]
    assert 'filter(col("x") * 2 % 10 < 8)' in logical
    twice = rows().filter(col("x") > 1).filter(col("x") > 2).explain()  # nobody knows which of them is which
    assert '(col("x")) > (1)' in twice
    assert '(col("x")) > (2)' in twice


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
