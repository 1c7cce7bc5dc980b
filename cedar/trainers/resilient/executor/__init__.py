"""Carry out a worker's list of instructions: messages in the order of the plan, no tags, no step without its peers."""

from cedar.trainers.resilient.executor.run import Executor, FinishedWork, Reduction, Result, reduce
from cedar.trainers.resilient.executor.transport import Lost, Superseded, Transport, Waiting

__all__ = ["Executor", "FinishedWork", "Lost", "Reduction", "Result", "Superseded", "Transport", "Waiting", "reduce"]
