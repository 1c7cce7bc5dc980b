"""What the tests of storage that fails share: short waits, requests that fail, files to read."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cedar.core.requests import RequestPatience

QUICK = RequestPatience(attempts=12, seconds=60, first=0.0001, most=0.001)


def parquet(start: int, stop: int, group: int = 50) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": range(start, stop), "y": [f"row {i}" for i in range(start, stop)]}), sink, group)
    return sink.getvalue()


def lines(start: int, stop: int) -> bytes:
    return b"".join(json.dumps({"x": i}).encode() + b"\n" for i in range(start, stop))


def failing(times: int, error: Exception) -> Any:
    calls = []

    def request(left: float) -> str:
        calls.append(left)
        if len(calls) <= times:
            raise error
        return "done"

    vars(request)["calls"] = calls
    return request
