"""Carry out a worker's list of instructions: messages in the order of the plan, no tags, no step without its peers."""

from cedar.trainers.resilient.executor.kept import Kept
from cedar.trainers.resilient.executor.reduction import Reduction, reduce
from cedar.trainers.resilient.executor.run import Executor, Result
from cedar.trainers.resilient.executor.strict import StrictNetwork, StrictTransport
from cedar.trainers.resilient.executor.transport import Lost, Superseded, Transport
from cedar.trainers.resilient.executor.waiting import Waiting

__all__ = [
    "Executor", "Kept", "Lost", "Reduction", "Result", "StrictNetwork", "StrictTransport", "Superseded", "Transport",
    "Waiting", "reduce",
]  # fmt: skip
