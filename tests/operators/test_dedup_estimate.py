"""dedup: groups that are found, estimates and what came of them, and what is refused."""

import pyarrow as pa
import pytest

import cedar
from cedar.core.errors import PipelineError
from cedar.operators.dedup_estimate import Reach, Sampled, factor, find_groups
from tests.operators.toy_groups import GROUP, grouped_names, run, toy
from tests.toy_sessions import interleaved, sessions

# ---- finding groups --------------------------------------------------------------------------------------------------


def auto(table, session=None, batch=256):
    p = cedar.from_arrow(table).dedup("auto", session=session).batch(batch)
    return p, next(iter(run(p.take(1), format="numpy")))


def test_auto_finds_the_features_that_repeat_together():
    table = sessions(4096, 16, 0.95, features=("a", "b")).append_column(
        "c", sessions(4096, 1, 0.0, features=("c",))["c"]
    )
    p, batch = auto(table, "session")
    assert grouped_names(batch) == {"a", "b"}
    assert batch["a"] is batch["b"]
    text = p.explain()
    assert "DEDUP  a+b: S 16 rows of a session in a batch, d 0.95" in text
    assert "predicted factor 9" in text
    assert "c left out: predicted factor 1 (S 16, d 0), below 1.5" in text
    p, batch = auto(table)  # without sessions known, they begin if nothing repeats: the factor is the same
    assert "predicted factor 9" in p.explain()


def test_features_that_change_at_different_times_are_groups_apart():
    table = sessions(4096, 16, 0.7, features=("a",), length=20)
    table = table.append_column("b", sessions(4096, 16, 0.7, features=("b",), length=20, seed=5)["b"])
    _, batch = auto(table, session="session")
    assert batch["a"] is not batch["b"]
    assert grouped_names(batch) == {"a", "b"}


def test_short_lists_and_rows_of_their_own_are_left_alone():
    table = sessions(512, 8, 1.0, features=("one",), length=0).append_column(
        "own", sessions(512, 1, 0.0, features=("own",))["own"]
    )
    p, batch = auto(table)
    assert grouped_names(batch) == set()
    assert "one left out:" in p.explain()
    assert "own left out: predicted factor 1" in p.explain()


def test_without_lists_nothing_is_sampled():
    p, batch = auto(pa.table({"x": [1, 2, 3]}), batch=3)
    assert grouped_names(batch) == set()
    assert "no column of lists" in p.explain()


def test_the_report_and_explain_say_what_came_of_it():
    table = sessions(4096, 16, 0.95)
    with cedar.from_arrow(table).dedup("auto", session="session").batch(512).loader() as loader:
        held = sum(batch["a"].unique for batch in loader)
        assert loader.report().dedup == {"a+b": pytest.approx(4096 / held)}
        assert f"dedup a+b: each row held once for {4096 / held:.3g}" in str(loader.report())
        assert f"achieved {4096 / held:.3g}" in loader.explain()


def test_a_sample_needs_no_function_that_leaves_the_lists_alone():
    called = []
    p = toy(4096).map(lambda row: called.append(row) or row, "row", dtype=int).dedup("auto").batch(64)
    assert "DEDUP" in p.explain()
    assert not called


# ---- estimates -------------------------------------------------------------------------------------------------------


def columns_of(table, names=("a", "b")):
    return {name: table[name].combine_chunks() for name in names}


@pytest.mark.parametrize(("samples", "repeats"), [(1, 0.0), (4, 0.5), (8, 0.95), (16, 0.95), (32, 1.0)])
@pytest.mark.parametrize("known", [True, False])
def test_predicted_and_achieved_factor_agree_on_clustered_logs(samples, repeats, known):
    table = sessions(8192, samples, repeats)
    session = table["session"].combine_chunks() if known else None
    estimate = Sampled(columns_of(table), session, Reach(1024)).estimate(["a", "b"])
    rows = cedar.from_arrow(table).dedup(GROUP).batch(1024)
    held = sum(batch["a"].unique for batch in rows)
    assert estimate.factor == pytest.approx(8192 / held, rel=0.15)
    if known:
        assert estimate.samples == pytest.approx(samples, rel=0.05)
        assert estimate.samples == 1 or estimate.repeats == pytest.approx(repeats, abs=0.02)


MIXES = {
    "interleaved": (lambda p: p, "session", 64),
    "shuffle": (lambda p: p.shuffle(seed=1, window=2048), "session", 1),
    "shuffle by": (lambda p: p.shuffle(seed=1, window=2048, by="session"), "session", 1),
    "interleave": (lambda p: p.shuffle(seed=1, window=2048, by="session", interleave=16), "session", 1),
    "wide shuffle": (lambda p: p.shuffle(seed=1), "session", 1),
}


@pytest.mark.parametrize("name", MIXES)
def test_predicted_and_achieved_factor_agree_however_rows_are_mixed(name):
    build, session, at_once = MIXES[name]
    table = interleaved(sessions(8192, 16, 0.9, vary=True), at_once)
    p = build(cedar.from_arrow(table).dedup(GROUP, session=session)).batch(256)
    with p.loader() as loader:
        held = sum(batch["a"].unique for batch in loader)
        text = loader.explain()
    predicted = float(text.split("predicted factor ")[1].split(";")[0])
    assert predicted == pytest.approx(8192 / held, rel=0.15)


def test_formulas_at_their_limits():
    assert factor(8, 0.95) == pytest.approx(5.93, abs=0.01)
    assert factor(1, 0.0) == factor(5, 0.0) == 1.0


def test_a_feature_that_would_cost_its_group_more_than_it_saves_stays_apart():
    table = sessions(4096, 16, 0.98, features=("a",), length=50)
    loose = sessions(4096, 16, 0.6, features=("b",), length=50, seed=3)
    sampled = Sampled(
        {"a": table["a"].combine_chunks(), "b": loose["b"].combine_chunks()}, table["session"].combine_chunks()
    )
    found = find_groups(sampled, ["a", "b"])
    assert [group.names for group in found.groups] == [("a",), ("b",)]


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda p: p.dedup([["a"], ["b", "a"]]), "column 'a' is in two groups"),
        (lambda p: p.dedup([["a"]]).dedup([["a", "b"]]).batch(2).loader(), "column 'a' is in two groups"),
        (lambda p: p.dedup([["x"]]), "no column 'x'"),
        (lambda p: p.dedup([["row"]]), "column 'row' of int64 holds no lists"),
        (lambda p: p.dedup([["a"]], session="x"), "no column 'x'"),
        (lambda p: p.dedup(["a", "b"]), "groups are lists of column names"),
        (lambda p: p.dedup("a"), "groups are lists of column names"),
        (lambda p: p.dedup([]), "a group has no columns"),
        (lambda p: p.dedup([["a"], []]), "a group has no columns"),
        (lambda p: p.dedup([[1]]), "1 is not a column name"),
    ],
)
def test_what_cannot_be_a_group_is_refused(build, message):
    with pytest.raises(PipelineError) as raised:
        list(build(toy(8)))
    assert message in str(raised.value)
    assert raised.value.site is not None


def test_a_null_session_is_an_error_that_names_the_row():
    rows = [{"s": i if i != 3 else None, "a": [1, 2, 3]} for i in range(8)]
    with pytest.raises(PipelineError, match="'s' is null") as raised:
        run(cedar.from_items(rows).dedup("auto", session="s").batch(4))
    assert raised.value.row.row == 3
