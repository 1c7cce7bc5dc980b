"""A small schedule with a dead worker."""

from cedar.trainers.resilient.planner import Problem, plan
from cedar.trainers.resilient.schedule import Worker

DEAD = frozenset({Worker(2, 1)})


def small(**changes):
    return plan(Problem(**{"stages": 3, "replicas": 2, "micro_batches": 3, "dead": DEAD} | changes)).schedule
