"""Execute a worker's instruction list. Messages have no tags, since the plan determines their order."""

from cedar.trainers.resilient.executor.run import Executor, FinishedWork, Reduction, Result, reduce
from cedar.trainers.resilient.executor.transport import Lost, Superseded, Transport, Waiting

__all__ = ["Executor", "FinishedWork", "Lost", "Reduction", "Result", "Superseded", "Transport", "Waiting", "reduce"]
