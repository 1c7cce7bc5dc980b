"""Counting: count the rows of each split that pass the filters, by reading only the columns that filters use."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from cedar.core.digests import digest_of
from cedar.core.errors import Skip
from cedar.core.process import Rank
from cedar.datasets.base import Read
from cedar.datasets.filesource import FileSource
from cedar.datasets.split_table import Numbers, SplitTable
from cedar.engine.binding import Binding
from cedar.engine.delivery.options import Options
from cedar.engine.epoch import DataEpoch, Job
from cedar.engine.metrics import Metrics
from cedar.engine.notes import columns_of, percent
from cedar.engine.plan_control import Plans
from cedar.plan.data import Plan
from cedar.plan.graph import Node, source_of
from cedar.store.blocks import versions
from cedar.store.cache import Store
from cedar.tasks.fingerprints import describe


class Counting:
    """Counts the rows of one loader's sources that pass the filters.

    A row whose filter raises an error is counted, because it keeps its slot in the run, where the error is reported or,
    under ``Skip``, the slot stays empty.

    Args:
        options: the loader's options; filters run on its executor.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self.job: Job | None = None  # the loader's job, set once it exists
        self.reported: list[str] = []  # messages about the counts, and about how much was read to count

    def __call__(self, source: Node, splits: SplitTable, filters: tuple[Node, ...]) -> Numbers:
        """Return the number of rows of each split that pass the filters, int64[splits]."""
        # imports the Parquet reader, which most runs do not need here
        from cedar.datasets.manifest import Counts, file_mark, load_counts, place_of, save_counts

        given = source_of(source)
        assert isinstance(given, FileSource)  # only files have columns that are read separately
        columns = columns_of(source, filters)
        narrow = given.select(columns)
        files, firsts, many = np.unique(splits.column("file"), return_index=True, return_counts=True)
        marks = [file_mark(given.listing[int(file)]) for file in files]
        parts = dict(zip(range(len(files)), map(slice, firsts, firsts + many), strict=True))
        key = _key(filters, [[name, str((source.schema or {}).get(name))] for name in columns])
        place = None if key is None else place_of(given, key)
        left = np.full(len(splits), -1, dtype=np.int64)

        def fill(kept: Counts) -> list[int]:
            """Fill in stored counts; return the numbers of the files without stored counts."""
            for number, part in parts.items():
                counts = kept.get(marks[number] or "", ())
                if len(counts) == many[number] and (np.array(counts) <= splits.rows[part]).all():
                    left[part] = counts
            return [number for number, part in parts.items() if (left[part] < 0).any()]

        missing = list(parts) if place is None else fill(load_counts(place))
        with place.place.alone(place.name) if place is not None and missing else contextlib.nullcontext():
            if place is not None and missing:
                missing = fill(load_counts(place))  # another process may have stored counts in the meantime
            if missing:
                chosen = left < 0
                left[chosen] = self._counted(source, filters, narrow, splits[chosen])
            if place is not None and missing:
                save_counts(place, {m: tuple(left[parts[n]].tolist()) for n, m in enumerate(marks) if m is not None})
        whole, part = (SplitTable.of(each.splits()).known_bytes for each in (given, narrow))
        labels = " and ".join(each.operator.label() for each in filters)
        share = f"{percent(part / whole)} of the bytes" if 0 < part < whole else "their columns alone"
        took = f"{share} of {source.operator.label()} were read to count them"
        took = took if len(missing) == len(files) else f"{took}, in {len(missing)} of {len(files)} files"
        took = took if missing else "their counts were stored by an earlier run"
        self.reported.append(f"the rows after {labels} were counted before the epoch: {int(left.sum()):,}; {took}")
        return left

    def _counted(
        self, source: Node, filters: Sequence[Node], narrow: FileSource, splits: SplitTable
    ) -> npt.NDArray[np.int64]:
        assert self.job is not None
        conditions = [filters[0].condition]
        prune = [partial(narrow.prune, predicate=each) for each in conditions if each is not None]
        looked = np.array([not any(none(split) for none in prune) for split in splits], dtype=bool)
        left = np.zeros(len(splits), dtype=np.int64)
        if looked.any():
            left[looked] = self._read(source, filters, narrow, splits[looked])
        return left

    def _read(
        self, source: Node, filters: Sequence[Node], narrow: FileSource, splits: SplitTable
    ) -> npt.NDArray[np.int64]:
        """Run the filters on all rows of the splits, and count the rows that pass."""
        assert self.job is not None
        read = root = Node(Read(narrow), (), source.site)
        for each in filters:
            root = Node(each.operator, (root,), each.site)
        whole = self.job.binding
        binding = Binding(root, Skip(), whole.check_env, whole.call_in_subprocess)
        binding.splits.put(read, splits)
        metrics = Metrics()
        job = replace(
            self.job, binding=binding, rank=Rank(0, 1, "counting"), split_batches=False, finish=(), store=Store(),
            metrics=metrics, plans=Plans(None, Plan.as_written(root), binding, metrics), deal="auto", steps=None,
            shares=None, encodes=False, counts={},
        )  # fmt: skip
        width = int(splits.column("stop").max()) + 1
        places = splits.column("file") * width + splits.column("start")
        ids = narrow.file_ids()
        by_id = np.argsort(ids)
        left = np.zeros(len(splits), dtype=np.int64)
        runner = self._options.runner(self.job.metrics.deaths)
        try:
            for _, piece in DataEpoch(job, runner, 0, None).pieces():
                keys = piece.rows.keys()
                file = by_id[np.searchsorted(ids, keys.file, sorter=by_id)]
                numbers = np.searchsorted(places, file * width + keys.row, side="right") - 1
                # ``read_files`` needs the maximum, since its first split is not identified by its first file.
                left += np.bincount(np.maximum(numbers, 0), minlength=len(left))
        finally:
            runner.close()
        return left


def _key(filters: Sequence[Node], types: list[list[str]]) -> str | None:
    """Return a key of the filters' code and column types, for stored counts; None if some code cannot be identified."""
    made = [describe(each.operator) for each in filters]
    if any(each.unknown for each in made):
        return None
    return digest_of([versions(), types, [[each.parameters, sorted(each.code.items())] for each in made]])[:16]
