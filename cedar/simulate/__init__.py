"""Simulate schedules and failures, for grids of any size, against other ways to live with failures. Imports no torch.

``SYSTEMS`` tells what a step takes for those who are dead; ``read_trace``, ``random_trace`` and ``replay`` what that
makes of hours in which machines come and go; ``predict`` what a real run should take, given what its instructions take.
Everything that comes out of here is *simulated*: say so next to every figure.
"""

from cedar.simulate.baselines import one_f_one_b, zero_bubble
from cedar.simulate.calibration import error, predict
from cedar.simulate.forecasts import Forecast, forecast
from cedar.simulate.replay import (
    REDUNDANCY,
    SYSTEMS,
    Event,
    Outcome,
    Phase,
    Trace,
    bamboo_time,
    drop_replica_time,
    fault_free_time,
    one_f_one_b_time,
    oobleck_time,
    phases,
    random_dead,
    random_trace,
    read_trace,
    replay,
    resilient_time,
    throughput_bound,
    zero_bubble_time,
)  # fmt: skip
from cedar.trainers.resilient.schedule import Durations

__all__ = [
    "REDUNDANCY", "SYSTEMS", "Durations", "Event", "Forecast", "Outcome", "Phase", "Trace", "bamboo_time",
    "drop_replica_time", "error", "fault_free_time", "forecast", "one_f_one_b",
    "one_f_one_b_time", "oobleck_time", "phases",
    "predict", "random_dead", "random_trace", "read_trace", "replay", "resilient_time", "throughput_bound",
    "zero_bubble", "zero_bubble_time",
]  # fmt: skip
