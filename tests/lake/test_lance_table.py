"""Files of a Lance data set, and the commit that joins them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from cedar import PipelineError, SourceError
from cedar.lake import lance_table

lance = pytest.importorskip("lance", reason="the extra lance is not installed")


def test_files_are_joined_in_the_order_that_is_given_and_once(tmp_path: Path) -> None:
    table = pa.table({"x": range(10), "l": [[i] * i for i in range(10)]})
    (tmp_path / "data").mkdir()
    files = []
    for number, part in enumerate((table.slice(4), table.slice(0, 0), table.slice(0, 4))):
        (made_in := tmp_path / f"made{number}").mkdir()
        made = Path(lance_table.write_file(part.to_reader(), str(made_in)))
        size = made.stat().st_size
        made.rename(tmp_path / "data" / f"part-{number}.lance")
        files.append((f"data/part-{number}.lance", part.num_rows, size))
    assert not lance_table.exists(str(tmp_path))
    lance_table.commit(str(tmp_path), files, table.schema)
    assert lance.dataset(tmp_path).to_table().equals(pa.concat_tables([table.slice(4), table.slice(0, 4)]))
    lance_table.commit(str(tmp_path), files[:1], table.schema)
    assert lance.dataset(tmp_path).version == 1


def test_places_that_will_not_do(tmp_path: Path) -> None:
    lance_table.check_place(str(tmp_path / "new"))
    with pytest.raises(PipelineError, match="Lance does not support ftp://"):
        lance_table.check_place("ftp://there/rows")
    (tmp_path / "file").touch()
    with pytest.raises(SourceError, match="cannot write to .*Not a directory"):
        lance_table.check_place(str(tmp_path / "file"))
