"""Times that Python's types cannot tell apart or cannot hold: four of each kind, one of them null."""

from __future__ import annotations

import pyarrow as pa

HOUR = 1_729_989_000  # 02:30 in Berlin, an hour before it is 02:30 again

TIMES = {
    "nanoseconds": pa.array([None, 1, 2, 1001], pa.timestamp("ns")),
    "durations": pa.array([None, 1, 2, 1001], pa.duration("ns")),
    "times of day": pa.array([None, 1, 2, 1001], pa.time64("ns")),
    "far years": pa.array([None, 1 << 62, -(1 << 62), 0], pa.timestamp("s")),
    "a repeated hour": pa.array([None, HOUR, HOUR + 3600, 0], pa.timestamp("s", "Europe/Berlin")),
    "days": pa.array([None, 1, 1 << 30, 2], pa.date32()),
    "lists": pa.array([None, [1], [2, None], [1001]], pa.large_list(pa.timestamp("ns"))),
    "structs": pa.array([None, {"t": 1}, {"t": 2}, {"t": 1001}], pa.struct([("t", pa.duration("ns"))])),
}
