"""Recovery: retry tasks whose worker died, and find the row that crashes workers.

Retries are safe: kernels are pure, and random draws depend only on the row. The caller receives exactly one result.
"""

from cedar.executors.recovery.deaths import Death, Deaths, block_daemon_at_exit, is_lost
from cedar.executors.recovery.patience import Patience
from cedar.executors.recovery.recovery import Recovery, WorkersDied, refused
from cedar.executors.recovery.task import Submit, TaskWork, time_limits

__all__ = [
    "Death",
    "Deaths",
    "Patience",
    "Recovery",
    "Submit",
    "TaskWork",
    "WorkersDied",
    "block_daemon_at_exit",
    "is_lost",
    "refused",
    "time_limits",
]
