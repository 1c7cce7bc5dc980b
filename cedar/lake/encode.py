"""Encode batches as bytes, the last step before they are written to files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from cedar.core.block import Block
from cedar.core.errors import PipelineError
from cedar.datasets.to_arrow import arrow_batch
from cedar.lake.formats import Format
from cedar.lake.parts import split_by
from cedar.operators.base import BlockKernel, Env


@dataclass(frozen=True)
class Encode(BlockKernel):
    """The kernel that encodes a batch as bytes inside a task.

    Args:
        form: the format of the files.
        partition_by: columns whose values become folder names.
        most: maximum rows of a piece; None means no limit.
    """

    form: Format
    partition_by: tuple[str, ...] = ()
    most: int | None = None
    encodes: ClassVar[bool] = True

    def __call__(self, block: Block, env: Env) -> Block:
        if not len(block):
            return Block({}, block.keys, block.dead, aligned=False)
        columns = self.columns(pa.Table.from_batches([arrow_batch(block)]))
        return Block(columns, block.keys, block.dead, aligned=False)

    def columns(self, table: pa.Table) -> dict[str, Any]:
        """Return the encoded pieces of a table as array columns, to send them to the writer. ``pieces`` reads them."""
        if not table.num_columns:
            raise PipelineError("write: there is no column to write")
        form, table = self.form, self.form.with_job_schema(table)
        folders, rows, sizes, encoded = [], [], [], []
        schema = None
        for folder, part in split_by(table, self.partition_by) if self.partition_by else (("", table),):
            if schema is None:
                form.check(part.schema)
                schema = part.schema
            for start in range(0, max(part.num_rows, 1), self.most or max(part.num_rows, 1)):
                piece = part.slice(start, self.most)
                encoded.append(np.frombuffer(form.encode(piece), np.uint8))
                folders.append(folder)
                rows.append(piece.num_rows)
                sizes.append(len(encoded[-1]))
        assert schema is not None
        return {
            "schema": np.frombuffer(schema.serialize(), np.uint8),
            "folders": np.array(folders, dtype=object),
            "rows": np.array(rows, np.int64),
            "sizes": np.array(sizes, np.int64),
            "bytes": encoded[0] if len(encoded) == 1 else np.concatenate(encoded),
        }


def pieces(columns: dict[str, Any]) -> Iterator[tuple[str, int, memoryview]]:
    """Yield (folder, number of rows, encoded bytes) for each piece."""
    at, data = 0, memoryview(columns["bytes"])
    for folder, rows, size in zip(
        columns["folders"].tolist(), columns["rows"].tolist(), columns["sizes"].tolist(), strict=True
    ):
        yield folder, rows, data[at : at + size]
        at += size
