"""GetLocalHour: the hour of the day of a time, in a given time zone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from cedar.core.columns import Column, ColumnType
from cedar.core.errors import invalid_call
from cedar.operators.recsys.lists import is_ids, values_of
from cedar.operators.transform import BadValues, Transform

_MIN_SECONDS, _MAX_SECONDS = -62_135_596_800, 253_402_300_799  # the years 1 to 9999, in seconds since 1970
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


@dataclass(frozen=True)
class GetLocalHour(Transform):
    """Convert times to the local hour of the day, 0 .. 23 (int64), in a time zone; nulls stay null.

    Reads a column of timestamps (UTC if they have no time zone), or of integers in ``unit`` since 1970 (UTC).
    With ``zone=None``, a second column gives the name of each row's time zone. Rows with an unknown time zone or a time
    outside the years 1 .. 9999 fail.

    Args:
        zone: a time zone name such as "Europe/Berlin". Arrow applies daylight saving time only up to 2037.
        unit: unit of integer times: "s", "ms", "us" or "ns".

    Raises:
        PipelineError: the time zone or the unit is unknown.

    Examples:
        >>> GetLocalHour("Asia/Tokyo")(0), GetLocalHour(None)(0, "America/New_York")
        (9, 19)
    """

    zone: str | None = "UTC"
    unit: Literal["s", "ms", "us", "ns"] = "s"

    def __post_init__(self) -> None:
        if self.unit not in ("s", "ms", "us", "ns"):
            raise invalid_call(f"GetLocalHour(unit={self.unit!r})", fix='"s", "ms", "us" or "ns"')
        if self.zone is not None and not _is_known_zone(self.zone):
            raise invalid_call(
                f"GetLocalHour({self.zone!r}): unknown time zone", fix="use a name such as Europe/Berlin"
            )

    @property
    def arity(self) -> int:  # type: ignore[override]
        return 1 if self.zone is not None else 2

    def result(self, *types: Any) -> ColumnType:
        if not (isinstance(types[0], pa.DataType) and (pt.is_timestamp(types[0]) or is_ids(types[0]))):
            raise self.unfit(types[0], "timestamps or integers")
        if len(types) > 1 and types[1] != pa.large_string():
            raise self.unfit(types[1], "names of time zones")
        return pa.int64()

    def columns(self, *columns: Column) -> Column:
        times = columns[0]
        unit, times = (self.unit, times) if is_ids(times.type) else (times.type.unit, times.cast(pa.int64()))
        _check_years(times, unit)
        utc = times.cast(pa.int64()).cast(pa.timestamp(unit, "UTC"))
        if self.zone is not None:
            return _local_hours(utc, self.zone)
        zones = columns[1].dictionary_encode()
        names = zones.dictionary.to_pylist()
        unknown_names = {name for name in names if not _is_known_zone(name)}
        if unknown_names:
            rows = {
                i: f"GetLocalHour: unknown time zone {z!r}"
                for i, z in enumerate(columns[1].to_pylist())
                if z in unknown_names
            }
            raise BadValues(rows, "map such names to known ones first, for example Europe/Berlin")
        hours = pa.nulls(len(utc), pa.int64())
        for number, name in enumerate(names):
            in_zone = pc.fill_null(pc.equal(zones.indices, number), False)
            hours = pc.replace_with_mask(hours, in_zone, _local_hours(utc.filter(in_zone), name))
        return hours


def _check_years(times: pa.Array, unit: str) -> None:
    """Raise BadValues for times outside the years 1 to 9999, for which an overflow would return an incorrect hour."""
    values, per_second = values_of(times), _PER_SECOND[unit]
    out_of_range = (values < _MIN_SECONDS * per_second) | (values > _MAX_SECONDS * per_second + per_second - 1)
    rows = np.flatnonzero(out_of_range & times.is_valid().to_numpy(zero_copy_only=False))
    if len(rows):
        fix = "filter such rows first, or fix unit="
        why = f"GetLocalHour: {{}} {unit} since 1970 is not in the years 1 to 9999"
        raise BadValues({int(row): why.format(values[row]) for row in rows}, fix)


def _local_hours(utc: pa.Array, zone: str) -> pa.Array:
    return pc.hour(utc.cast(pa.timestamp(utc.type.unit, zone)))


def _is_known_zone(zone: Any) -> bool:
    if not isinstance(zone, str) or not zone:
        return False
    try:
        _local_hours(pa.array([0], pa.timestamp("s", "UTC")), zone)
    except pa.ArrowException:
        return False
    return True
