from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar import col
from cedar.core.columns import UNKNOWN
from cedar.core.errors import PipelineError, RowError
from cedar.datasets.jsonl import read_jsonl
from tests.datasets.reading import column, read_keyed, read_rows, traveled


def write(folder: Path, lines, name: str = "t.jsonl", end: str = "\n") -> Path:
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + end for line in lines)
    (folder / name).write_bytes(text.encode())
    return folder / name


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jsonl")


DTYPES = {"i": int, "s": str, "l": list[float], "d": pa.struct([("a", pa.int64()), ("b", pa.string())])}
ROW = st.fixed_dictionaries(
    {},
    optional={
        "i": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
        "s": st.none() | st.text(max_size=5),
        "l": st.none() | st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3),
        "d": st.none() | st.fixed_dictionaries({"a": st.integers(0, 9), "b": st.text("ab\n", max_size=2)}),
    },
)


@given(st.lists(ROW | st.sampled_from(["", "  "]), max_size=20), st.integers(1, 80), st.sampled_from(["\n", "\r\n"]))
def test_rows_are_what_the_json_module_reads(place: Path, lines, size, end):
    path = write(place, lines, end=end)
    source = replace(read_jsonl(path, dtypes=DTYPES), split_bytes=size)
    keyed = read_keyed(source, list(reversed(range(len(source.splits())))))
    expected = [{name: line.get(name) for name in DTYPES} for line in lines if not isinstance(line, str)]
    assert [{name: row[name] for name in DTYPES} for _, row in keyed] == expected
    data = path.read_bytes()
    for ((_, offset), _), line in zip(keyed, [x for x in lines if not isinstance(x, str)], strict=True):
        assert json.loads(data[offset:].split(b"\n")[0]) == line


def test_types_are_fixed_by_the_first_64_rows(tmp_path: Path):
    rows = [{"i": 1, "f": 2, "l": [1, 2], "d": {"a": 1}}, {"f": 0.5, "late": "x", "i": None, "l": []}]
    source = read_jsonl(write(tmp_path, rows))
    assert source.schema() == {
        "i": pa.int64(),
        "f": pa.float64(),
        "l": pa.large_list(pa.int64()),
        "d": pa.struct([("a", pa.int64())]),
        "late": pa.large_string(),
    }
    assert read_rows(traveled(source)) == [
        {"i": 1, "f": 2.0, "l": [1, 2], "d": {"a": 1}, "late": None},
        {"i": None, "f": 0.5, "l": [], "d": None, "late": "x"},
    ]


def test_long_first_lines(tmp_path: Path):
    rows = [{"s": "x" * 3000, "i": i} for i in range(63)] + [{"s": "", "i": 0.5}]
    assert read_jsonl(write(tmp_path, rows)).schema()["i"] == pa.float64()


def test_several_files_and_compressed_ones(tmp_path: Path):
    write(tmp_path, [], "a.jsonl")
    write(tmp_path, [{"x": 1}], "b.jsonl")
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(b'{"x": 2}\n\n{"x": 3}'))
    source = read_jsonl(tmp_path / "*")
    assert read_keyed(source) == [((1, 0), {"x": 1}), ((2, 0), {"x": 2}), ((2, 10), {"x": 3})]
    assert [s.streaming for s in source.splits()] == [False, True]


def test_no_rows_and_no_columns(tmp_path: Path):
    assert read_rows(read_jsonl(write(tmp_path, []))) == []
    assert read_rows(read_jsonl(write(tmp_path, [{}, {}]))) == [{}, {}]


@pytest.mark.parametrize("at", [0, 30, 100])
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"x": 1', "Expecting ',' delimiter|Missing a comma"),
        ("[1, 2]", "a JSON object is expected, not list"),
        ('{"x": 1} {"x": 2}', "Extra data"),
        ('{"x": 1, "y": 2, "z": {"q": 1}', "line"),
        ("not json at all " * 50, "Expecting value|Invalid value"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, message: str, at: int):
    lines = [{"x": i} for i in range(120)]
    path = write(tmp_path, [*lines[:at], line, *lines[at:]])
    with pytest.raises(RowError, match=message) as error:
        read_rows(read_jsonl(path))
    assert f"t.jsonl, line {at + 1}: " in error.value.what
    assert len(error.value.what) < 600
    assert error.value.row is not None
    assert error.value.row.unit == "byte"
    data = path.read_bytes()
    assert data[error.value.row.row :].decode().startswith(line)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"x": 0.5}, "couldn't parse"),
        ({"x": "a"}, "changed from number to string"),
        ({"x": 1, "new": 2}, r"unexpected column 'new': the first 64 rows have \['x', 'd'\]"),
        ({"x": 1, "d": {"a": 1, "b": 2}}, "unexpected field"),
        ('{"x": 1, "x": 2}', "twice"),
        ({"x": 1 << 70}, "couldn't parse"),
    ],
)
def test_a_line_that_does_not_fit_is_named(tmp_path: Path, line, message: str):
    path = write(tmp_path, [{"x": 1, "d": {"a": 1}}] * 100 + [line] + [{"x": 1}] * 50)
    with pytest.raises(RowError, match=message) as error:
        read_rows(read_jsonl(path))
    assert "t.jsonl, line 101: " in error.value.what
    assert "dtypes" in (error.value.fix or "") or "correct" in (error.value.fix or "")


@pytest.mark.parametrize("text", ['[{"x": 1},\n{"x": 2}]\n', '[{"x": 1}, {"x": 2}]', '[\n{"x": 1}\n]\n', "[]"])
def test_a_file_that_is_a_json_array(tmp_path: Path, text: str):
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(RowError, match=r"t\.jsonl, line 1: the file is a JSON array, not JSON lines") as error:
        read_jsonl(tmp_path / "t.jsonl").schema()
    assert "from_items" in (error.value.fix or "")


HUGE = 12345678901234567890123


@pytest.mark.parametrize(
    ("values", "line", "message", "kind"),
    [
        ([HUGE], 1, f"holds {HUGE}$", pa.decimal128(38, 0)),
        ([1, -HUGE], 2, f"holds -{HUGE}$", pa.decimal128(38, 0)),
        ([10**40, 1], 1, f"holds {10**40}$", pa.decimal256(76, 0)),
        ([2**64 - 1, -1], 2, f"holds both -1 and {2**64 - 1}$", pa.decimal128(38, 0)),
        ([[2**64 - 1], None, [5, -1]], 3, f"holds both -1 and {2**64 - 1}$", pa.large_list(pa.decimal128(38, 0))),
        ([{"a": HUGE}], 1, f"holds {HUGE}$", pa.struct([("a", pa.decimal128(38, 0))])),
    ],
)
def test_whole_numbers_beyond_64_bits(tmp_path: Path, values, line: int, message: str, kind: pa.DataType):
    path = write(tmp_path, [{"x": value} for value in values])
    assert read_jsonl(path).schema()["x"] is UNKNOWN
    with pytest.raises(RowError) as error:
        read_rows(read_jsonl(path))
    said = rf"t\.jsonl, line {line}: column 'x': no integer type {message}"
    assert re.search(said, error.value.what)
    assert f"pyarrow.decimal{256 if '256' in str(kind) else 128}(" in (error.value.fix or "")
    assert column(read_jsonl(path, dtypes={"x": kind}), "x") == values


def test_dtypes_widen_and_add_columns(tmp_path: Path):
    path = write(tmp_path, [{"x": 1}] * 100 + [{"x": 0.5, "new": "a"}])
    source = read_jsonl(path, dtypes={"x": "float64", "new": str})
    assert read_rows(source)[-1] == {"x": 0.5, "new": "a"}
    assert read_rows(source)[0] == {"x": 1.0, "new": None}


def test_values_that_do_not_go_together(tmp_path: Path):
    path = write(tmp_path, [{"x": 1}, {"x": 2}, {"x": "a"}])
    with pytest.raises(RowError, match=r"t\.jsonl, line 3: column 'x': .* do not fit into one column") as error:
        read_rows(traveled(read_jsonl(path)))
    assert "dtypes={'x': str}" in (error.value.fix or "")
    assert column(read_jsonl(path, dtypes={"x": str}), "x") == ["1", "2", "a"]
    with pytest.raises(PipelineError, match="a column of a file cannot be object"):
        read_jsonl(path, dtypes={"x": object}).schema()


def test_bytes_that_are_not_utf8(tmp_path: Path):
    lines = [b'{"s": "a"}'] * 80 + [b'{"s": "\xff"}']
    (tmp_path / "t.jsonl").write_bytes(b"\n".join(lines))
    with pytest.raises(RowError, match=r"t\.jsonl, line 81: "):
        column(read_jsonl(tmp_path / "t.jsonl"), "s")


MESSY = [{"url": "u"}, [], "none", 7, None, [1.50, {"q": "ü"}], True]
AS_TEXT = [v if isinstance(v, str | None) else json.dumps(v) for v in MESSY]


@pytest.fixture(params=[0, 100])
def messy(request, tmp_path: Path) -> tuple[str, int]:
    """Lines of which one key holds anything, from the first line or from a later one on; and how many."""
    rows = [MESSY[0]] * request.param + MESSY
    return str(write(tmp_path, [{"i": i, "meta": v, "o": {"a": i}} for i, v in enumerate(rows)])), len(rows)


WAYS = {
    "columns": (lambda path: cedar.read_jsonl(path, columns=["i"]), ["i"]),
    "select": (lambda path: cedar.read_jsonl(path).select("i"), ["i"]),
    "select nothing": (lambda path: cedar.read_jsonl(path).select(), []),
    "a struct": (lambda path: cedar.read_jsonl(path).select("o"), ["o"]),
    "a field": (lambda path: cedar.read_jsonl(path).select(a=col("o").struct.field("a")), ["a"]),
    "drop above map": (lambda path: cedar.read_jsonl(path).map(abs, "i").drop("meta"), ["i", "o"]),
    "select above filter": (lambda path: cedar.read_jsonl(path).filter(col("i") >= 0).shuffle().select("i"), ["i"]),
    "concat": (lambda path: cedar.concat(*[cedar.read_jsonl(path).drop("meta")] * 2), ["i", "o"]),
    "other dtypes": (lambda path: cedar.read_jsonl(path, dtypes={"i": int, "meta": str}).select("i"), ["i"]),
}


@pytest.mark.parametrize("plan", ["auto", "off"])
@pytest.mark.parametrize("way", WAYS)
def test_a_key_that_nothing_reads_may_hold_anything(messy, way: str, plan: str):
    make, names = WAYS[way]
    rows = list(make(messy[0]).loader(plan=plan))
    assert len(rows) == messy[1] * (2 if way == "concat" else 1)
    assert all(list(row) == names for row in rows)


def test_a_key_that_is_read_fails_with_its_line(messy):
    pipeline = cedar.read_jsonl(messy[0])
    assert pipeline.count() == messy[1]
    with pytest.raises(RowError, match=rf"line {messy[1] - len(MESSY) + 2}: .*meta") as error:
        list(pipeline)
    assert "dtypes={'meta': str}" in str(error.value)
    assert "columns=[" in str(error.value)


def test_a_column_of_strings_keeps_other_values_as_json_text(messy):
    pipeline = cedar.read_jsonl(messy[0], dtypes={"meta": str}).select("meta", "o")
    assert [row["meta"] for row in pipeline][-len(MESSY) :] == AS_TEXT
    assert list(pipeline)[-1]["o"] == {"a": messy[1] - 1}


def test_json_text_is_kept_as_it_is_written(tmp_path: Path):
    lines = [
        '{"s":1.50,"t":1}',
        '{"s": [ 1,"}" ] , "t":2 }',
        '{"s": {"a": 1e400}, "t": 3}',
        f'{{"t": 4, "s": {10**30}}}',
    ]
    source = read_jsonl(write(tmp_path, lines), dtypes={"s": str})
    assert column(source, "s") == ["1.50", '[ 1,"}" ]', '{"a": 1e400}', str(10**30)]
    write(tmp_path, [*lines, '{"s": 1, "t": 5, "s": 2}'])
    with pytest.raises(RowError, match="line 5: .*twice"):
        read_rows(read_jsonl(tmp_path / "t.jsonl", dtypes={"s": str}))


def test_columns_are_names(tmp_path: Path):
    path = write(tmp_path, [{"x": 1, "y": 2}])
    assert read_rows(read_jsonl(path, columns=["y"])) == [{"y": 2}]
    with pytest.raises(PipelineError, match="no column 'z'"):
        read_jsonl(path, columns=["z"]).schema()
    with pytest.raises(PipelineError, match="not a list of different names"):
        read_jsonl(path, columns=["x", "x"])


def test_dates_are_read_from_strings(tmp_path: Path):
    path, day = tmp_path / "days.jsonl", pa.date32()
    rows = ['{"day": "2024-01-31", "days": ["0001-01-01", null], "at": {"day": "9999-12-31"}}', '{"day": null}']
    path.write_text("\n".join(rows))
    dtypes = {"day": date, "days": pa.list_(day), "at": pa.struct({"day": day})}
    assert list(cedar.read_jsonl(path, dtypes=dtypes)) == [
        {"day": date(2024, 1, 31), "days": [date(1, 1, 1), None], "at": {"day": date(9999, 12, 31)}},
        {"day": None, "days": None, "at": None},
    ]
    path.write_text('{"day": "2024-01-31"}\n{"day": "2024-02-30"}\n')
    with pytest.raises(RowError, match="line 2: .*2024-02-30"):
        list(cedar.read_jsonl(path, dtypes={"day": date}))


def test_a_key_with_half_of_a_surrogate_pair_is_refused(tmp_path: Path):
    path = tmp_path / "keys.jsonl"
    path.write_text('{"a": 1}\n{"\\ud800": 1}\n')
    with pytest.raises(RowError, match="line 2: the key .* surrogate pair") as caught:
        list(cedar.read_jsonl(path))
    str(caught.value).encode()


def test_times_have_an_offset_if_and_only_if_their_type_has_a_zone(tmp_path: Path):
    zoned, early = pa.timestamp("us", "UTC"), datetime(2024, 1, 30, 22)
    path = write(tmp_path, [{"t": "2024-01-31T00:00:00+02:00", "l": ["2024-01-30T22:00:00Z", None]}])
    (row,) = cedar.read_jsonl(path, dtypes={"t": zoned, "l": pa.list_(zoned)})
    assert row == {"t": early.replace(tzinfo=UTC), "l": [early.replace(tzinfo=UTC), None]}
    for offset, right, wrong in (("+00:00", zoned, datetime), ("", datetime, zoned)):
        write(tmp_path, [{"t": f"2024-01-30T22:00:00{offset}"}])
        assert [value.replace(tzinfo=None) for value in column(read_jsonl(path, dtypes={"t": right}), "t")] == [early]
        with pytest.raises(RowError, match="line 1: .*zone offset"):
            read_rows(read_jsonl(path, dtypes={"t": wrong}))


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_a_byte_order_mark_is_no_json(tmp_path: Path, size: int):
    path = write(tmp_path, ['\ufeff{"x": 1}', {"x": 2}])
    for kind in (int, str):
        source = replace(read_jsonl(path, dtypes={"x": kind}), split_bytes=size)
        assert read_keyed(source) == [((0, 0), {"x": kind(1)}), ((0, 12), {"x": kind(2)})]
