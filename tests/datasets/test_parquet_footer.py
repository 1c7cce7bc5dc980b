"""Footers that pyarrow would end the process over: each is refused by name, in this process."""

from __future__ import annotations

import copy
import io
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from benchmarks.mutated_thrift import I32, LIST, STRUCT, change, footer_of, places, with_footer
from cedar.core.errors import SourceError
from cedar.datasets.parquet import read_parquet
from cedar.datasets.parquet_footer import MAGIC, BadFooter, RowGroups, check_metadata


def table() -> pa.Table:
    rows = range(40)
    return pa.table(
        {
            "i": pa.array(rows),
            "f": pa.array([i / 7 for i in rows]),
            "s": pa.array([None if i % 7 == 0 else f"w{i % 5}" for i in rows]),
            "l": pa.array([[1, 2, 3][: i % 4] for i in rows]),
            "st": pa.array([{"a": i, "b": str(i)} for i in rows]),
            "m": pa.array([[("k", 1)]] * 40, pa.map_(pa.string(), pa.int32())),
            "b": pa.array([i % 2 == 0 for i in rows]),
        }
    )


@pytest.fixture(scope="module")
def whole() -> bytes:
    file = io.BytesIO()
    pq.write_table(table(), file, row_group_size=10, write_page_index=True)
    return file.getvalue()


def metadata(data: bytes) -> bytes:
    return data[len(data) - 8 - int.from_bytes(data[-8:-4], "little") : -8]


def everything(path: Path) -> list[Any]:
    """Rows, sizes and bounds, as a source reads them."""
    source = read_parquet(str(path))
    source.schema()
    for split in source.splits():
        for leaf in source._leaves[split.file]:
            source._bounds(split, leaf)
    return [chunk.columns for split in source.splits() for chunk in source.read(split)]


def changed(whole: bytes, number: int, value: Any) -> bytes:
    """The file with another value for the first field of that number in the metadata of its columns."""
    footer, begin = footer_of(whole)
    groups = next(v for n, _, v in footer[1] if n == 4)
    column = next(v for n, _, v in groups[2][0][1] if n == 1)[2][0]
    meta = next(v for n, _, v in column[1] if n == 3)
    entry = next(e for e in meta[1] if e[0] == number)
    entry[2] = value(entry[2])
    return with_footer(whole, begin, footer)


def histogram(sizes: Any) -> Any:
    for entry in sizes[1]:
        if entry[1] == LIST:
            entry[2][2].append(1)
    return sizes


def short_bound(statistics: Any) -> Any:
    for entry in statistics[1]:
        if isinstance(entry[2], bytes):
            entry[2] = entry[2][:3]
    return statistics


@pytest.mark.parametrize(("number", "value", "why"), [(16, histogram, "histogram"), (12, short_bound, "a bound of 3")])
def test_what_pyarrow_dies_of_is_an_error(number: int, value: Any, why: str, whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    path.write_bytes(changed(whole, number, value))
    for ask in (
        lambda: cedar.read_parquet(str(path)).schema,
        lambda: list(cedar.read_parquet(str(path)).batch(4).loader(executor="inline")),
    ):
        with pytest.raises(SourceError, match=why) as caught:
            ask()
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("plaintext", [True, False])
def test_encrypted_columns_are_an_error(plaintext: bool, tmp_path: Path) -> None:
    import pyarrow.parquet.encryption as pe

    class Kms(pe.KmsClient):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            super().__init__()

        def wrap_key(self, key: bytes, name: str) -> bytes:
            return key

        def unwrap_key(self, key: bytes, name: str) -> bytes:
            return key

    config = pe.EncryptionConfiguration(
        footer_key="a", column_keys={"b": ["i"]}, plaintext_footer=plaintext, double_wrapping=False
    )
    properties = pe.CryptoFactory(Kms).file_encryption_properties(
        pe.KmsConnectionConfig(custom_kms_conf={"a": "0" * 16, "b": "1" * 16}), config
    )
    path = tmp_path / "t.parquet"
    with pq.ParquetWriter(str(path), table().schema, encryption_properties=properties) as writer:
        writer.write_table(table())
    with pytest.raises(SourceError, match="encrypted") as caught:
        list(cedar.read_parquet(str(path)).batch(4).loader(executor="inline"))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("head", [0x10, 0x1E, 0x1B, 0x00])
def test_fields_of_no_type(head: int, whole: bytes) -> None:
    data = bytearray(metadata(whole))
    data[0] = head
    with pytest.raises(BadFooter):
        check_metadata(bytes(data))


def test_a_field_whose_number_wraps_to_another(whole: bytes) -> None:
    footer, begin = footer_of(whole)
    footer[1].append([(1 << 16) + 8, STRUCT, ("struct", [])])
    with pytest.raises(BadFooter, match="a field of number"):
        check_metadata(metadata(with_footer(whole, begin, footer)))


def test_files_of_other_writers_and_settings(tmp_path: Path) -> None:
    settings: list[dict[str, Any]] = [
        {"version": "1.0", "use_deprecated_int96_timestamps": True},
        {"write_statistics": False},
        {"store_schema": False, "compression": "gzip"},
        {"data_page_version": "2.0", "use_dictionary": False, "column_encoding": {"i": "DELTA_BINARY_PACKED"}},
    ]
    wanted = None
    for number, setting in enumerate(settings):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(table(), path, **setting)
        rows = [c["i"].to_pylist() for c in everything(path)]
        assert wanted in (None, rows)
        wanted = rows
    import polars as pl

    pl.DataFrame({"i": range(40)}).write_parquet(tmp_path / "pl.parquet")
    assert [c["i"].to_pylist() for c in everything(tmp_path / "pl.parquet")] == wanted


@pytest.mark.heavy
def test_footers_that_lie_are_refused_or_read(whole: bytes, tmp_path: Path) -> None:
    """Fields changed one by one: with the check left out, each run of this test ends the process."""
    footer, begin = footer_of(whole)
    path, refused = tmp_path / "t.parquet", 0
    for seed in range(60):
        rng, lying = random.Random(seed), copy.deepcopy(footer)
        for _ in range(rng.randint(1, 2)):
            change(lying, rng)
        path.write_bytes(with_footer(whole, begin, lying))
        try:
            everything(path)
        except SourceError as error:
            refused += str(path) in str(error)
    assert 10 < refused < 60


@pytest.mark.heavy
def test_a_shape_that_is_known_hides_no_fault(whole: bytes) -> None:
    """What is refused in the first row group is refused in the last, where the shapes of columns are known."""
    footer, begin = footer_of(whole)
    groups = next(v for n, _, v in footer[1] if n == 4)[2]
    spots = len(places(groups[0]))
    assert spots == len(places(groups[-1]))
    differ = 0
    for seed in range(60):
        verdicts = []
        for group in (0, -1):
            lying = copy.deepcopy(footer)
            inside = next(v for n, _, v in lying[1] if n == 4)[2][group]
            change(inside, random.Random(seed))
            try:
                verdicts.append(check_metadata(metadata(with_footer(whole, begin, lying))))
            except BadFooter as error:
                verdicts.append(str(error))
        differ += verdicts[0] != verdicts[1]
        assert isinstance(verdicts[0], int) == isinstance(verdicts[1], int), seed
    assert differ < 8, "their texts may name other numbers"


def test_the_schema_says_how_many_columns_there_are(whole: bytes) -> None:
    footer, begin = footer_of(whole)
    elements = next(v for n, _, v in footer[1] if n == 2)[2]
    elements[1][1].append([5, I32, 2])
    with pytest.raises(BadFooter):
        check_metadata(metadata(with_footer(whole, begin, footer)))


def piece(start: int, stop: int, **options: Any) -> bytes:
    table = pa.table({
        "i": pa.array(range(start, stop), pa.int64()),
        "s": pa.array([None if i % 3 == 0 else f"w{i % 5}" for i in range(start, stop)], pa.string()),
        "l": pa.array([list(range(i % 4)) for i in range(start, stop)], pa.list_(pa.int64())),
    })  # fmt: skip
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=max(1, stop - start), write_page_checksum=True, **options)
    return sink.getvalue()


def joined(pieces: list[bytes]) -> bytes:
    groups, file = RowGroups(), bytearray(MAGIC)
    for each in pieces:
        file += groups.add(each, len(file))
    assert len(groups) == len(pieces)
    return bytes(file + groups.footer())


@pytest.mark.parametrize(
    ("count", "options"),
    [
        (1, {}),
        (14, {"write_page_index": True}),
        (15, {"compression": "zstd", "use_dictionary": False}),
        (129, {}),  # the number of groups takes another byte from 15 on, and from 128
    ],
)
def test_rows_and_figures_are_those_of_the_pieces(count: int, options: dict[str, Any]):
    sizes = [n * (n + 1) // 2 % 7 for n in range(count)]
    starts = [sum(sizes[:n]) for n in range(count + 1)]
    pieces = [piece(a, b, **options) for a, b in pairwise(starts)]
    whole = joined(pieces)
    tables = [pq.read_table(io.BytesIO(each)) for each in pieces]
    file = pq.ParquetFile(io.BytesIO(whole), page_checksum_verification=True)
    assert file.read().equals(pa.concat_tables(tables))
    assert (file.metadata.num_rows, file.num_row_groups) == (starts[-1], count)
    for n in {0, count // 2, count - 1}:
        assert file.read_row_group(n).equals(tables[n])
        mine, alone = file.metadata.row_group(n), pq.read_metadata(io.BytesIO(pieces[n])).row_group(0)
        for i in range(mine.num_columns):
            assert mine.column(i).statistics == alone.column(i).statistics
            assert mine.column(i).total_compressed_size == alone.column(i).total_compressed_size


def test_the_footer_is_one_that_is_read_from_files():
    pieces = [piece(0, 5, write_page_index=True), piece(5, 9, write_page_index=True)]
    assert check_metadata(metadata(joined(pieces))) == check_metadata(metadata(pieces[0])) == 3
