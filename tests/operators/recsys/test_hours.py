"""GetLocalHour, against the zones of Python."""

from __future__ import annotations

import datetime as dt
import zoneinfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.errors import PipelineError
from cedar.operators import recsys
from tests.operators.recsys.toy_columns import refused

ZONES = ["UTC", "Europe/Berlin", "Asia/Kolkata", "America/New_York"]


@given(st.lists(st.integers(0, 2**31) | st.none(), max_size=6), st.sampled_from(ZONES))
def test_local_hours(seconds, zone):
    def hour(s):
        return None if s is None else dt.datetime.fromtimestamp(s, zoneinfo.ZoneInfo(zone)).hour

    expected = [hour(s) for s in seconds]
    times = pa.array(seconds, pa.int64())
    assert recsys.GetLocalHour(zone).columns(times).to_pylist() == expected
    assert recsys.GetLocalHour(zone).columns(times.cast(pa.timestamp("s"))).to_pylist() == expected
    own = recsys.GetLocalHour(None).columns(times, pa.array([zone] * len(times), pa.large_string()))
    assert own.to_pylist() == expected


def test_local_hours_of_rows_in_many_zones():
    times = pa.array([0, 0, None, 0], pa.int64())
    zones = pa.array(["UTC", "Asia/Tokyo", "UTC", None], pa.large_string())
    assert recsys.GetLocalHour(None).columns(times, zones).to_pylist() == [0, 9, None, None]
    strange = pa.array(["UTC", "Mars", None, "Mars"], pa.large_string())
    assert list(refused(recsys.GetLocalHour(None), [times, strange])) == [1, 3]
    millis = recsys.GetLocalHour("Asia/Tokyo", unit="ms")
    assert millis.columns(pa.array([3_600_000], pa.int32())).to_pylist() == [10]


def test_times_too_far_to_have_an_hour_name_their_rows():
    seconds = pa.array([0, None, 2**64 - 1, 253_402_300_800], pa.uint64())
    assert list(refused(recsys.GetLocalHour(), [seconds])) == [2, 3]
    assert list(refused(recsys.GetLocalHour("Asia/Tokyo"), [pa.array([2**62, -62_135_596_801])])) == [0, 1]
    assert list(refused(recsys.GetLocalHour("Asia/Tokyo"), [pa.array([2**62], pa.timestamp("s"))])) == [0]
    last = pa.array([253_402_300_799_999, -62_135_596_800_000, None])
    assert recsys.GetLocalHour("Asia/Tokyo", unit="ms").columns(last).to_pylist() == [8, 9, None]
    assert recsys.GetLocalHour(unit="ns").columns(pa.array([2**63 - 1])).to_pylist() == [23]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: recsys.GetLocalHour("Mars"), "unknown time zone"),
        (lambda: recsys.GetLocalHour(unit="h"), "unit='h'"),
        (lambda: recsys.GetLocalHour()("noon"), "takes timestamps"),
        (lambda: recsys.GetLocalHour(None)(0, 5), "takes names of time zones"),
    ],
)
def test_parameters_and_columns_that_do_not_fit(make, message):
    with pytest.raises(PipelineError) as raised:
        make()
    assert message in str(raised.value)
