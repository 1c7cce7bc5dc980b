from __future__ import annotations

import csv
import gzip
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar.core.errors import PipelineError, RowError, SourceError
from cedar.datasets.csv import read_csv
from tests.datasets.reading import column, read_keyed, read_rows, traveled


def write(folder: Path, text: str | bytes, name: str = "t.csv") -> Path:
    (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return folder / name


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("csv")


def both(path, **options):
    """The source read as one stream, and in small pieces."""
    pieces = replace(read_csv(path, quoting=False, **options), split_bytes=7)
    return [read_csv(path, **options), pieces]


@given(
    st.lists(st.tuples(st.integers(-99, 99), st.sampled_from(["", "a", "é x", "1"])), max_size=30),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    st.integers(1, 40),
    st.integers(0, 3),
)
def test_rows_are_the_same_in_one_stream_and_in_pieces(place: Path, rows, end, ended, size, blanks):
    text = end.join(["x,s", *[f"{x},{s}" for x, s in rows]]) + (end if ended else "") + end * blanks
    path = write(place, text)
    expected = [{"x": x, "s": s or None} for x, s in rows]
    options: Any = {"dtypes": {"x": "int64", "s": "string"}}
    assert read_rows(read_csv(path, **options)) == expected
    source = replace(read_csv(path, quoting=False, **options), split_bytes=size)
    keyed = read_keyed(source, list(reversed(range(len(source.splits())))))
    assert [row for _, row in keyed] == expected
    data = text.encode()
    for (_, offset), row in keyed:
        assert data[offset:].decode().startswith(f"{row['x']},{row['s'] or ''}")


@given(st.lists(st.tuples(st.text('ab"\n, é', max_size=6), st.text('ab"\n, é', max_size=6)), max_size=12))
def test_quoted_values_are_what_the_csv_module_wrote(place: Path, rows):
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerows([("p", "q"), *rows])
    source = read_csv(write(place, stream.getvalue()), dtypes={"p": str, "q": str})
    assert [(r["p"], r["q"]) for r in read_rows(source)] == rows


def test_types_from_the_first_block(tmp_path: Path):
    path = write(tmp_path, 'i,f,b,s,d,n\n1,1.5,true,a,2024-01-01,\n,,,,,\n3,2,false,"",x,\n')
    source = read_csv(path)
    assert source.schema() == {
        "i": pa.int64(),
        "f": pa.float64(),
        "b": pa.bool_(),
        "s": pa.large_string(),
        "d": pa.large_string(),
        "n": pa.large_string(),
    }
    rows = read_rows(traveled(source))
    assert rows[1] == dict.fromkeys("ifbsdn")
    assert rows[2] == {"i": 3, "f": 2.0, "b": False, "s": "", "d": "x", "n": None}


def test_dates_stay_text_unless_asked_for(tmp_path: Path):
    path = write(tmp_path, "d\n2024-01-01\n")
    assert column(read_csv(path), "d") == ["2024-01-01"]
    assert read_csv(path, dtypes={"d": pa.date32()}).schema() == {"d": pa.date32()}


def test_types_are_those_of_the_first_file_that_has_rows(tmp_path: Path):
    write(tmp_path, "x\n", "a.csv")
    write(tmp_path, "x\n1.5\n", "b.csv")
    write(tmp_path, "x\n2\n", "c.csv")
    for source in both(tmp_path / "*.csv"):
        assert column(source, "x") == [1.5, 2.0]
        assert [s.file for s in source.splits() if list(source.read(s))] == [1, 2]


def test_options(tmp_path: Path):
    path = write(tmp_path, "1;-\n2;b\n")
    for source in both(path, delimiter=";", header=False, null_values=["-"]):
        assert read_rows(source) == [{"column_1": 1, "column_2": None}, {"column_1": 2, "column_2": "b"}]
    for source in both(path, delimiter=";", header=False, column_names=["x", "y"], columns=["y"]):
        assert read_rows(source) == [{"y": "-"}, {"y": "b"}]
    for source in both(path, delimiter=";", column_names=["x", "y"]):
        assert read_rows(source) == [{"x": 2, "y": "b"}]
        assert read_rows(source.select(["y"])) == [{"y": "b"}]
        assert len(read_rows(source.select([]))) == 1


def test_one_column_keeps_its_empty_lines(tmp_path: Path):
    for source in both(write(tmp_path, "x\n1\n\n3\n")):
        assert column(source, "x") == [1, None, 3]


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path):
    for source in both(write(tmp_path, b"\xef\xbb\xbfx,y\n1,2\n")):
        assert read_rows(source) == [{"x": 1, "y": 2}]


def test_a_byte_order_mark_of_a_value_is_kept(tmp_path: Path):
    for source in both(write(tmp_path, "x,y\n\ufeffa,1\n\ufeffb,2\n")):
        assert column(source, "x") == ["\ufeffa", "\ufeffb"]


def test_compressed_files(tmp_path: Path):
    path = write(tmp_path, gzip.compress(b"x,y\n1,2\n3,4\n"), "t.csv.gz")
    for source in both(path):
        assert [s.streaming for s in source.splits()] == [True]
        assert read_rows(source) == [{"x": 1, "y": 2}, {"x": 3, "y": 4}]


def test_several_blocks_of_a_stream(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("cedar.datasets.csv._BLOCK", 64)
    source = read_csv(write(tmp_path, "x,s\n" + "".join(f'{i},"a\n{i}"\n' for i in range(100))))
    assert len(list(source.read(source.splits()[0]))) > 5
    assert [(key[1], row["x"], row["s"]) for key, row in read_keyed(source)] == [(i, i, f"a\n{i}") for i in range(100)]


@pytest.mark.parametrize(
    ("text", "message", "row", "offset"),
    [
        ("x,y\n1,2\n\n3\n", "Expected 2 columns, got 1: 3", 1, 9),
        ("x,y\n1,2\n3,4,5\n", "Expected 2 columns, got 3: 3,4,5", 1, 8),
        ("x,y\n1,2\n3,a\n", "column 'y' cannot be int64: invalid value 'a'", 1, 8),
    ],
)
def test_a_row_that_does_not_fit_is_named(tmp_path: Path, text: str, message: str, row: int, offset: int):
    path = write(tmp_path, text)
    options: Any = {"dtypes": {"x": "int64", "y": "int64"}}
    with pytest.raises(RowError, match=message) as error:
        read_rows(read_csv(path, **options))
    assert error.value.row is not None
    assert (error.value.row.row, error.value.row.unit, error.value.row.url) == (row, "row", str(path))
    source = replace(read_csv(path, quoting=False, **options), split_bytes=9)
    with pytest.raises(RowError, match=message):
        read_rows(source)


def test_pieces_name_the_line_of_a_misfit(tmp_path: Path, monkeypatch):
    path = write(tmp_path, "x\n" + "1\n" * 50 + "a\n")
    monkeypatch.setattr("cedar.datasets.csv._BLOCK", 16)
    source = replace(read_csv(path, quoting=False), split_bytes=10)
    with pytest.raises(RowError, match=r"t\.csv, line 52: column 'x' cannot be int64: invalid value 'a'") as error:
        read_rows(source)
    assert error.value.row is not None
    assert (error.value.row.row, error.value.row.unit) == (102, "byte")
    assert "dtypes" in (error.value.fix or "")
    assert column(read_csv(path, dtypes={"x": str}), "x")[-1] == "a"


def test_a_later_file_that_does_not_fit(tmp_path: Path):
    write(tmp_path, "x\n1\n", "a.csv")
    write(tmp_path, "x\n2\nb\n", "b.csv")
    for source in both(tmp_path / "*.csv"):
        with pytest.raises(RowError, match=r"b\.csv, .*: column 'x' cannot be int64: invalid value 'b'"):
            read_rows(source)


def test_files_with_other_headers(tmp_path: Path):
    write(tmp_path, "x,y\n1,2\n", "a.csv")
    for header, how in (("x,z", r"the second has no \['y'\]"), ("x,y,z", "also has"), ("y,x", "another order")):
        write(tmp_path, f"{header}\n", "b.csv")
        for source in both(tmp_path / "*.csv"):
            with pytest.raises(SourceError, match=rf"a\.csv and .*b\.csv have different headers: .*{how}"):
                source.splits()


def test_an_empty_file(tmp_path: Path):
    for source in both(write(tmp_path, "")):
        with pytest.raises(SourceError, match="the file is empty and has no header"):
            source.splits()
    for source in both(write(tmp_path, "x,y")):
        assert read_rows(source) == []
        assert list(source.schema()) == ["x", "y"]


@pytest.mark.parametrize("columns", [["x", "y"], ["x"], []])
@pytest.mark.parametrize("block", [8, 4 << 20])
def test_a_quote_that_is_never_closed(tmp_path: Path, monkeypatch, columns: list[str], block: int):
    monkeypatch.setattr("cedar.datasets.csv._BLOCK", block)
    source = read_csv(write(tmp_path, 'x,y\n1,5" pipe\n2,"a\n3,b\n4,c\n'))  # the first quote opens nothing
    with pytest.raises(SourceError, match=r"t\.csv: a quote is opened and never closed"):
        read_rows(source.select(columns))


@pytest.mark.parametrize(
    ("header", "why"),
    [("größe,x", "byte 0xf6 in position 2"), ('"a\né",x', "byte 0xe9 in position 0"), ("a\0,x", "a null byte")],
)
def test_a_header_that_is_not_utf8(tmp_path: Path, header, why):
    path = write(tmp_path, f"{header}\n1,2\n".encode("latin-1"))
    for options in ({}, {"quoting": False}, {"header": False}):
        if "\n" not in header or not options:
            with pytest.raises(SourceError, match=f"the header is not UTF-8: .*{why}"):
                read_rows(read_csv(path, **options))


def test_blank_lines_before_the_header(tmp_path: Path):
    for text in ("\n\nx,y\n1,a\n", "\r\n\r\nx,y\r\n1,a\r\n", "\ufeff\nx,y\n1,a", "\r\rx,y\n1,a\n"):
        for source in both(write(tmp_path, text)):
            assert read_rows(source) == [{"x": 1, "y": "a"}]


def test_lines_that_end_with_cr_alone(tmp_path: Path):
    stream, pieces = both(write(tmp_path, "x,y\r1,a\r2,b\r"))
    assert read_rows(stream) == [{"x": 1, "y": "a"}, {"x": 2, "y": "b"}]
    with pytest.raises(SourceError, match=r"t\.csv: its lines end with CR only"):
        read_rows(replace(pieces, split_bytes=100))


def test_a_file_that_changes_while_it_is_streamed(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("cedar.datasets.csv._BLOCK", 64)
    path = write(tmp_path, "x,y\n" + "1,a\n" * 100)
    source = read_csv(path)
    chunks = source.read(source.splits()[0])
    next(chunks)
    write(tmp_path, "x,y\n" + "1,a\n" * 50)
    with pytest.raises(SourceError, match=r"t\.csv: changed while in use"):
        list(chunks)


def test_bytes_that_are_not_utf8(tmp_path: Path):
    for source in both(write(tmp_path, b"x,y\n1,a\n2,\xff\n")):
        with pytest.raises(RowError, match="column 'y' cannot be large_string: invalid UTF8 data") as error:
            read_rows(source)
        assert error.value.fix == "convert the file to utf-8"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ["z"]}, "there is no column 'z'"),
        ({"dtypes": {"z": "int64"}}, "there is no column 'z'"),
        ({"dtypes": {"x": object}}, "a column of a file cannot be object"),
        ({"column_names": ["a"]}, "1 column_names for 2 columns"),
        ({"delimiter": "||"}, "delimiter must be one character"),
        ({"delimiter": "§"}, "delimiter must be one character of ASCII, not '§'"),
        ({"delimiter": "\n"}, "delimiter must be one character"),
        ({"delimiter": None}, "delimiter must be one character of ASCII, not None"),
        ({"column_names": "ab"}, "is not a list of different names"),
        ({"columns": ["x", "x"]}, "is not a list of different names"),
        ({"columns": 5}, "columns=5 is not a list of different names"),
        ({"quoting": csv.QUOTE_MINIMAL}, "quoting=0.*: True or False is expected"),
        ({"quoting": csv.QUOTE_NONE}, "quoting=3.*: True or False is expected"),
        ({"quoting": "no"}, "quoting='no'.*: True or False is expected"),
        ({"header": 0}, "header=0.*: True or False is expected"),
        ({"header": None}, "header=None.*: True or False is expected"),
    ],
)
def test_arguments_that_cannot_be(tmp_path: Path, options, message):
    path = write(tmp_path, "x,y\n1,2\n")
    with pytest.raises(PipelineError, match=message):
        read_csv(path, **options).schema()


def test_two_columns_of_one_name(tmp_path: Path):
    path = write(tmp_path, "a,a\n1,2\n")
    with pytest.raises(SourceError, match="two columns are named 'a'"):
        read_csv(path).schema()
    assert read_rows(read_csv(path, column_names=["a", "b"])) == [{"a": 1, "b": 2}]


def test_criteo(shared_data: Path):
    for source in both(shared_data / "criteo_sample.csv"):
        schema = source.schema()
        assert schema["C1"] == pa.large_string()
        assert {schema[f"I{i}"] for i in range(1, 14)} <= {pa.int64(), pa.float64()}
        rows = read_rows(source)
        assert len(rows) == 200
        assert rows[0]["C1"] == "05db9164"
        assert rows[0]["I1"] is None
        assert rows[0]["C19"] is None


def test_movielens(shared_data: Path):
    path = shared_data / "movielens_sample.csv"
    with open(path, newline="") as stream:
        titles = [row["title"] for row in csv.DictReader(stream)]
    assert column(read_csv(path), "title") == titles
    with pytest.raises(RowError, match="Expected 10 columns, got 11") as error:  # quoted titles hold commas
        read_rows(read_csv(path, quoting=False))
    assert "leave out quoting=False" in (error.value.fix or "")


@pytest.mark.parametrize("plan", ["auto", "off"])
@pytest.mark.parametrize("declared", [{}, {"x": int}])
def test_a_column_that_nothing_reads_may_hold_anything(tmp_path: Path, declared, plan: str):
    path, rows = tmp_path / "t.csv", ["1"] * (0 if declared else 700_000) + ["a"]
    path.write_text("x,y\n" + "".join(f"{x},{i}\n" for i, x in enumerate(rows)))
    pipeline = cedar.read_csv(str(path), dtypes=declared)
    batches = pipeline.map(abs, "y").select("y").batch(10_000, last="keep").loader(plan=plan)
    assert sum(len(batch["y"]) for batch in batches) == len(rows)
    assert pipeline.count() == len(rows)
    with pytest.raises(RowError, match="column 'x' cannot be"):
        list(pipeline.batch(10_000).loader(plan=plan))


def test_an_empty_field_is_null_whatever_else_is(tmp_path):
    path = write(tmp_path, "id,price\n1,2.5\n2,n/a\n3,\n")
    for source in both(path, null_values=["n/a"]):
        assert source.schema()["price"] == pa.float64()
        assert column(source, "price") == [2.5, None, None]
    assert column(read_csv(str(write(tmp_path, 's,n\n"",1\n,2\n')), null_values=["n/a"]), "s") == ["", None]


def test_one_string_that_stands_for_null_may_be_given_by_itself(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("x\nn/a\nn\na\n")
    assert [row["x"] for row in cedar.read_csv(str(path), null_values="n/a")] == [None, "n", "a"]


TEXT = st.text('a"\n\r, \ufeff', max_size=6)


@given(
    st.lists(st.tuples(TEXT, TEXT), max_size=12),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    st.integers(1, 30),
)
def test_rows_are_the_same_wherever_blocks_end(place: Path, rows, end: str, quoting, block: int):
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=end, quoting=quoting).writerows([("p", "q"), *rows])
    (place / "t.csv").write_bytes(text.getvalue().encode())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("cedar.datasets.csv._BLOCK", block)
        read = read_keyed(read_csv(place / "t.csv", dtypes={"p": str, "q": str}))
    assert [(key[1], row["p"], row["q"]) for key, row in read] == [(i, *row) for i, row in enumerate(rows)]


def test_a_quote_inside_a_value_is_a_letter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "t.csv").write_text('x,y\n5" pipe,"a\n""b"\nc"",d\n "e",f\n"g"h",i\n')
    for block in range(1, 40):
        monkeypatch.setattr("cedar.datasets.csv._BLOCK", block)
        rows = [tuple(row.values()) for row in read_rows(read_csv(tmp_path / "t.csv"))]
        assert rows == [('5" pipe', 'a\n"b'), ('c""', "d"), (' "e"', "f"), ('gh"', "i")]


def test_a_row_may_be_longer_than_a_block_but_not_than_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cedar.datasets.csv._BLOCK", 100)
    (tmp_path / "t.csv").write_text('x,y\n1,"' + "a\n" * 500 + '"\n2,b\n')
    assert column(read_csv(tmp_path / "t.csv"), "y") == ["a\n" * 500, "b"]
    monkeypatch.setenv("CEDAR_MAX_LINE_BYTES", "900")
    with pytest.raises(
        SourceError, match=r"t\.csv: a row \(unless a quote is never closed\) is longer than the limit line_bytes"
    ):
        read_rows(read_csv(tmp_path / "t.csv"))


def test_nothing_is_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A thread that still reads a Python stream as its process ends would have it abort."""
    (tmp_path / "t.csv").write_text("x,y\n" + "1,a\n" * 1000)
    source = read_csv(tmp_path / "t.csv")
    assert list(source.schema()) == ["x", "y"]
    stream = io.BytesIO((tmp_path / "t.csv").read_bytes())
    monkeypatch.setattr("cedar.datasets.csv._BLOCK", 64)
    monkeypatch.setattr("cedar.datasets.csv.open_native", lambda file: stream)
    chunks = source.read(source.splits()[0])
    for read in (4 + 64, 4 + 128):
        next(chunks)
        assert stream.tell() == read
