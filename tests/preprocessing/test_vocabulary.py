"""Vocabularies against a plain count, spilled and not."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar.core import block
from cedar.core.errors import PipelineError, SourceError
from cedar.preprocessing import vocabulary
from cedar.preprocessing.vocabulary import Vocabulary
from cedar.recommendation import build_vocabularies, load_vocabularies, save_vocabularies

IDS = st.lists(st.lists(st.integers(-5, 12), max_size=4), min_size=1, max_size=40)


def built(p, columns, **options):
    fitted = cedar.fit(p, cedar.preprocessing.Vocabulary(columns, **options))
    return {name: fitted[name] for name in columns}


def wanted(values, min_count, most):
    counts = [(v, n) for v, n in Counter(values).items() if n >= min_count]
    return sorted(counts, key=lambda pair: (-pair[1], pair[0]))[:most]


@given(IDS, st.integers(1, 4), st.sampled_from([None, 1, 5]), st.booleans(), st.booleans(), st.integers(0, 3))
def test_the_frequent_values_first(rows, min_count, most, text, spills, oov):
    rows = [[f"v{v:03d}" if text else v for v in row] for row in rows]
    kind = pa.large_list(pa.large_string() if text else pa.int64())
    p = cedar.from_arrow(pa.table({"x": pa.array(rows, kind), "n": range(len(rows))}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocabulary, "_PARTS", 3)
        patch.setattr(block, "_FRAME_ROWS", 8 if spills else 100)
        options = {"min_count": min_count, "max_size": most, "oov": oov, "memory": 1 if spills else 1 << 20}
        found = built(p, ["x", "n"], **options)["x"]
    expected = wanted([v for row in rows for v in row], min_count, most)
    assert list(zip(found.values.to_pylist(), found.counts.to_pylist(), strict=True)) == expected
    assert found.oov == min(oov, len(expected))
    assert sorted([*found.ids.to_pylist(), found.oov]) == list(range(found.size))
    assert found.seen == sum(map(len, rows))
    assert found.rare == found.seen - sum(n for _, n in expected)
    if not expected:
        return
    numbers = {v: i + (i >= found.oov) for i, (v, _) in enumerate(expected)}
    mapped = p.map(found.transform(), "x").loader(executor="inline")
    assert [row["x"] for row in mapped] == [[numbers.get(v, found.oov) for v in row] for row in rows]


def test_nulls_are_not_counted():
    p = cedar.from_arrow(pa.table({"x": pa.array([None, 3, None, 3])}))
    found = built(p, ["x"])["x"]
    assert found.values.to_pylist() == [3]
    assert found.seen == 2


@pytest.mark.parametrize(
    ("values", "mapped"),
    [
        ([3, None, 3, 4], [1, "null", 1, 2]),
        (["b", None, "b", "c"], [1, "null", 1, 2]),
        ([[3, None], None, [], [3, 4]], [[1, "null"], [], [], [1, 2]]),
        ([["b"], [None], None, ["c", "b"]], [[1], ["null"], [], [2, 1]]),
        ([None, None], ["null", "null"]),
    ],
)
def test_nulls_get_oov_or_a_number_of_their_own(tmp_path, values, mapped):
    p = cedar.from_arrow(pa.table({"x": pa.array(values)}))
    for null in ("oov", "own", "keep"):
        save_vocabularies(built(p, ["x"], null=null), tmp_path / null)
        words = load_vocabularies(tmp_path / null)["x"]
        number = {"oov": 0, "own": words.size - 1, "keep": None}[null]
        assert words.size == len(words.values) + (2 if null == "own" else 1)
        expected = [[number if i == "null" else i for i in row] if isinstance(row, list) else row for row in mapped]
        expected = [number if row == "null" else row for row in expected]
        if null == "keep":
            expected = [None if value is None else row for value, row in zip(values, expected, strict=True)]
        assert p.map(words.transform(), "x").to_arrow()["x"].to_pylist() == expected
        if null != "keep":  # the loader gives arrays of integers
            (batch,) = p.map(words.transform(), "x").batch(9, last="keep").loader(executor="inline")
            assert [getattr(x, "tolist", lambda x=x: x)() for x in batch["x"]] == expected
    with pytest.raises(PipelineError, match="null='zero'") as caught:
        built(p, ["x"], null="zero")
    assert caught.value.site.file == __file__


def test_a_vocabulary_without_values_maps_to_oov():
    p = cedar.from_arrow(pa.table({"x": pa.array(["a", None]), "n": pa.array([7, 8])}))
    for name in ("x", "n"):
        nothing = built(p, [name], min_count=2, oov=5)[name]
        assert p.map(nothing.transform(), name).to_arrow()[name].to_pylist() == [0, 0]


@pytest.mark.parametrize("values", [[5, 5, 9], ["b", "b", "a"]])
def test_a_vocabulary_is_the_same_after_a_file(tmp_path, values):
    found = built(cedar.from_arrow(pa.table({"x": values})), ["x"], oov=1)
    (path,) = save_vocabularies(found, tmp_path / "words")
    assert pq.read_table(path).column_names == ["value", "id", "count"]
    again = load_vocabularies(tmp_path / "words")["x"]
    assert again.transform() == found["x"].transform()
    assert (again.column, again.oov, again.seen, again.rare) == ("x", 1, 3, 0)
    assert str(again) == "x: 2 values, 0.00% of 3 are not in it"
    assert again.transform()(values[2]) == 2


def test_what_is_no_vocabulary_is_said(tmp_path):
    pq.write_table(pa.table({"x": [1]}), tmp_path / "x.parquet")
    for call in (lambda: Vocabulary.load(tmp_path / "x.parquet"), lambda: Vocabulary.load(tmp_path / "none.parquet")):
        with pytest.raises(SourceError, match="is not a vocabulary"):
            call()
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="no vocabularies"):
        load_vocabularies(tmp_path / "empty")


def test_what_cannot_be_counted_is_refused(tmp_path):
    p = cedar.from_items([{"x": 1.5, "a/b": 1}])
    with pytest.raises(PipelineError, match="holds double"):
        built(p, ["x"])
    with pytest.raises(PipelineError, match="no column 'y'"):
        built(p, ["y"])
    with pytest.raises(PipelineError, match="min_count"):
        built(p, ["x"], min_count=0)
    with pytest.raises(PipelineError, match="needs a name for its file"):
        save_vocabularies(built(p, ["a/b"]), tmp_path)


def test_the_old_name_warns_and_gives_the_same():
    p = cedar.from_items([{"x": "b", "n": 1}, {"x": "b", "n": 2}, {"x": "a", "n": 2}])
    with pytest.warns(UserWarning, match=r"cedar\.fit\(p, cedar\.preprocessing\.Vocabulary"):
        found = build_vocabularies(p, ["x", "n"], min_count=2, most=1, executor="inline", memory="1MiB")
    assert {n: w.values.to_pylist() for n, w in found.items()} == {"x": ["b"], "n": [2]}
