"""Recovery: tasks whose worker died are submitted again, and the row that kills workers is found.

Kernels are pure and draws are keyed by the row, so a task may run any number of times; its caller gets one answer.
"""

from cedar.executors.recovery.deaths import Death, Deaths
from cedar.executors.recovery.lost import is_lost, rest_at_exit
from cedar.executors.recovery.patience import Patience
from cedar.executors.recovery.recovery import Recovery, WorkersDied, refused
from cedar.executors.recovery.task import Submit, TaskWork, limits_of

__all__ = [
    "Death",
    "Deaths",
    "Patience",
    "Recovery",
    "Submit",
    "TaskWork",
    "WorkersDied",
    "is_lost",
    "limits_of",
    "refused",
    "rest_at_exit",
]
