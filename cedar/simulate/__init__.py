"""Simulate pipeline schedules and failures for grids of any size, and compare fault-tolerance methods. Needs no torch.

``SYSTEMS`` maps each method's name to a function from a ``Problem`` (grid and dead workers) to the step time.
``read_trace``, ``random_trace`` and ``replay`` simulate hours of training in which machines fail and are repaired.
``predict`` estimates the step times of a real run from measured instruction times. All results are simulated.
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
