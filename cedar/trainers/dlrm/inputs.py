"""Converts a batch to the model's inputs: ids of unique rows, and for each row its unique row. Also checks ids."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import fsspec
import pyarrow as pa
import torch

import cedar
from cedar.core.errors import CedarError
from cedar.datasets.parquet_footer import BadFooter, metadata_of, read_tail
from cedar.trainers.dlrm.options import FeatureOptions
from cedar.trainers.dlrm.tables import Bags
from cedar.trainers.dlrm.unique import Expansion, Windows, windows_of

_MAX_FILES = 64  # maximum number of files whose footers are read


@dataclass(frozen=True, eq=False)
class Feature:
    """One feature of a batch."""

    # the feature's lists, of unique rows if it is in a deduplicated group, else of all rows; with ``windows``, one bag
    # for each value that lists share
    bags: Bags
    # maps rows to unique rows, one object for all features of a group; None without deduplication
    by: Expansion | None
    windows: Windows | None = None  # for sliding lists: the values of each list

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.by) if self.by is not None else self.lists

    @property
    def lists(self) -> int:
        """The number of lists: one per unique row if the feature is in a group, else one per row."""
        return len(self.bags) if self.windows is None else len(self.windows)

    @property
    def lengths(self) -> torch.Tensor:
        """The list lengths, int64 ``[lists]``."""
        return self.bags.offsets.diff() if self.windows is None else self.windows.lengths


@dataclass(frozen=True, eq=False)
class Inputs:
    """The model's inputs for one batch."""

    dense: torch.Tensor  # ``[rows, n]``
    features: tuple[Feature, ...]  # in the order of the options
    labels: torch.Tensor | None  # ``[rows]``, None if the batch has no labels

    def __len__(self) -> int:
        return len(self.dense)

    @property
    def looked_up(self) -> int:
        """The number of ids to look up, counting unique rows once."""
        return sum(len(feature.bags.ids) for feature in self.features)


def read_batch(
    batch: Mapping[str, Any], features: Sequence[FeatureOptions], dense: Sequence[str], label: str | None, *,
    dtype: torch.dtype = torch.float32, device: torch.device | None = None,
) -> Inputs:  # fmt: skip
    """Convert a batch from a loader with ``format="torch"`` to model inputs.

    A feature's column may be a tensor of ids (one or a fixed number per row), a JaggedTensor of lists, or a group.
    """
    known: dict[int, Expansion] = {}
    seen: list[tuple[FeatureOptions, torch.Tensor, torch.Tensor]] = []
    feature_inputs = tuple(_feature(batch, option, known, seen, device) for option in features)
    check(seen)
    rows = [len(feature) for feature in feature_inputs]
    columns = [batch[name].to(device=device, dtype=dtype) for name in dense]
    width = torch.stack(columns, 1) if columns else torch.zeros(rows[0], 0, dtype=dtype, device=device)
    labels = None
    if label is not None and label in batch:
        labels = batch[label].to(device=device, dtype=torch.promote_types(dtype, torch.float32))
        odd = labels[~((labels >= 0) & (labels <= 1))]
        if len(odd):
            raise CedarError(f"the label {label!r} must be 0 or 1; got {float(odd[0]):g}", fix="check the data")
    return Inputs(width, feature_inputs, labels)


def _feature(
    batch: Mapping[str, Any], option: FeatureOptions, known: dict[int, Expansion],
    seen: list[tuple[FeatureOptions, torch.Tensor, torch.Tensor]], device: torch.device | None,
) -> Feature:  # fmt: skip
    column = batch.get(option.column)
    by, weights = None, None
    if isinstance(column, cedar.InverseKeyedJaggedTensor):
        if id(column) not in known:
            known[id(column)] = Expansion.of(column.inverse_lookup.to(device), column.unique)
        by, lists = known[id(column)], column[option.column]
        ids, offsets = lists.values, lists.offsets
        if option.weights:
            weights = _weights_of(column, option, offsets)
    elif isinstance(column, cedar.JaggedTensor):
        ids, offsets = column.values, column.offsets
        if option.weights:
            given = batch.get(option.weights)
            if isinstance(given, cedar.InverseKeyedJaggedTensor):
                raise _not_in_one_group(option)
            weights = given.values if given is not None and torch.equal(given.offsets, offsets) else None
    elif isinstance(column, torch.Tensor) and column.ndim in (1, 2):
        step = column.shape[1] if column.ndim == 2 else 1
        ids, offsets = column.reshape(-1), torch.arange(len(column) + 1, device=column.device) * step
    else:
        problem = "is not in the batch" if column is None else f"is {type(column).__name__}"
        raise CedarError(f"the feature {option.column!r} {problem}", fix="use a column of ids, or of lists of ids")
    if option.weights and weights is None:
        raise CedarError(f"{option.weights!r} must have one weight per id of {option.column!r}", fix="check the data")
    if ids.is_floating_point() or ids.is_complex():
        raise CedarError(f"the ids of {option.column!r} are {ids.dtype}", fix="give integers")
    seen.append((option, ids, offsets))
    if option.sliding:
        values, windows = windows_of(ids, offsets)
        single = torch.arange(len(values) + 1, device=device)
        bags = Bags(option.home, values.to(device=device, dtype=torch.int64), single)
        return Feature(bags, by, windows.to(device))
    bags = Bags(
        option.home, ids.to(device=device, dtype=torch.int64), offsets.to(device),
        None if weights is None else weights.to(device),
    )  # fmt: skip
    return Feature(bags, by)


def _weights_of(group: Any, option: FeatureOptions, offsets: Any) -> Any:
    if option.column in (group.weights or {}):
        return group.weights[option.column]
    if option.weights not in group.keys:
        raise _not_in_one_group(option)
    given = group[option.weights]
    return given.values if torch.equal(given.offsets, offsets) else None


def _not_in_one_group(option: FeatureOptions) -> CedarError:
    return CedarError(
        f"{option.column!r} and its weights {option.weights!r} are not in the same dedup group",
        fix=f'list both in data.dedup: [["{option.column}", "{option.weights}"]]',
    )


def check(seen: Sequence[tuple[FeatureOptions, torch.Tensor, torch.Tensor]]) -> None:
    """Raise if an id is not in its table or a list is longer than ``longest``. Synchronizes with the device once."""
    limits = []
    for option, ids, offsets in seen:
        low, high = torch.aminmax(ids) if len(ids) else (offsets[0], offsets[0])  # 0, which every table has
        most = offsets.diff().max() if option.longest and len(offsets) > 1 else offsets[0]
        limits.append(torch.stack([low.long(), high.long(), most.long()]))
    for (option, _, _), (low, high, most) in zip(seen, torch.stack(limits).tolist() if limits else (), strict=True):
        if low < 0 or high >= option.rows:
            raise invalid_id(option, low if low < 0 else high)
        if option.longest and most > option.longest:
            raise CedarError(
                f"a list of {option.column!r} has {most} ids; features.longest is {option.longest}",
                done="no list was truncated",
                fix=f"truncate the lists beforehand, or set features.longest of {option.column!r} to at least {most}",
            )


def invalid_id(option: FeatureOptions, value: int, where: str = "") -> CedarError:
    """Return the error for an id that is not a row of its table."""
    return CedarError(
        f"{where}the feature {option.column!r} has the id {value}; its table {option.home!r} has the rows 0 to "
        f"{option.rows - 1}",
        done="nothing was looked up",
        fix=(
            'negative ids often mean "missing": map them to a row of their own'
            if value < 0
            else f'set features.rows to {value + 1} or more, use a vocabulary, or set ids = "modulo" to share rows'
        ),
    )


def rows_of(inputs: Inputs, rows: range) -> Inputs:
    """Return consecutive rows of a batch. If the expansion index is ascending, drop unique rows that these rows do not
    use.
    """
    known: dict[int, tuple[int, int, Expansion]] = {}
    features = []
    for feature in inputs.features:
        start, stop, by = rows.start, rows.stop, None
        if feature.by is not None:
            if id(feature.by) not in known:
                known[id(feature.by)] = _narrowed(feature.by, rows)
            start, stop, by = known[id(feature.by)]
        windows = None
        if feature.windows is not None:
            windows, span = feature.windows.cut(start, stop)
            start, stop = span.start, span.stop
        features.append(Feature(_bags_of(feature.bags, start, stop), by, windows))
    cut = slice(rows.start, rows.stop)
    return Inputs(inputs.dense[cut], tuple(features), None if inputs.labels is None else inputs.labels[cut])


def _narrowed(by: Expansion, rows: range) -> tuple[int, int, Expansion]:
    index = by.index[rows.start : rows.stop]
    if by.order is not None:
        return 0, by.unique, Expansion.of(index, by.unique)
    start, stop = (int(index[0]), int(index[-1]) + 1) if len(index) else (0, 0)
    return start, stop, Expansion.of(index - start, stop - start)


def _bags_of(bags: Bags, start: int, stop: int) -> Bags:
    first, last = int(bags.offsets[start]), int(bags.offsets[stop])
    weights = None if bags.weights is None else bags.weights[first:last]
    return Bags(bags.table, bags.ids[first:last], bags.offsets[start : stop + 1] - first, weights)


def check_footers(paths: str | Sequence[str], features: Iterable[FeatureOptions]) -> None:
    """Raise if a Parquet footer shows ids outside the tables. Skip files without statistics. ``features``: only those
    without a vocabulary are checked.
    """
    wanted = {f.column: f for f in features if f.ids == "asis" and not f.vocabulary}
    for path in [paths] if isinstance(paths, str) else paths:
        for name, metadata in _footers(path):
            _check(metadata, wanted, name)


def _footers(path: str) -> list[tuple[str, Any]]:
    """Return names and footers of files, or nothing if they cannot be read: the pipeline will report that error."""
    try:
        system, place = fsspec.core.url_to_fs(path)
        files = system.glob(place) if "*" in place else system.find(place)
        names = [name for name in sorted(files) if name.endswith((".parquet", ".pq"))][:_MAX_FILES]
        return [(name, _footer(system, name)) for name in names]
    except (OSError, NotImplementedError, ImportError, pa.ArrowInvalid, BadFooter):
        return []


def _footer(system: Any, name: str) -> Any:
    with system.open(name, "rb") as file:
        return metadata_of(read_tail(file, file.seek(0, io.SEEK_END)))


def _check(metadata: Any, wanted: dict[str, FeatureOptions], name: str) -> None:
    if not metadata.num_row_groups:
        return
    row_group = metadata.row_group(0)
    columns = {}
    for at in range(row_group.num_columns):
        root = row_group.column(at).path_in_schema.split(".")[0]
        if root in wanted:
            columns[at] = wanted[root]
    for group in range(metadata.num_row_groups):
        for at, option in columns.items():
            limits = metadata.row_group(group).column(at).statistics
            if limits is None or not limits.has_min_max or not isinstance(limits.min, int):
                continue
            if limits.min < 0 or limits.max >= option.rows:
                raise invalid_id(option, limits.min if limits.min < 0 else limits.max, f"{name}, row group {group}: ")
