"""Problems for planners: any, and one whose answer is known."""

from hypothesis import strategies as st

from cedar.trainers.resilient.planner import Problem
from cedar.trainers.resilient.schedule import Costs, Worker, grid

LONE = frozenset({Worker(2, 1)})


@st.composite
def problems(draw):
    stages, replicas, micro_batches = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 5))
    dead = draw(st.sets(st.sampled_from(list(grid(stages, replicas))), max_size=4))
    dead -= {Worker(stage, draw(st.integers(0, replicas - 1))) for stage in range(stages)}
    each = st.tuples(*[st.sampled_from([1, 2, 0.7])] * stages)
    costs = Costs(
        draw(each), draw(each), draw(each), transfer=draw(st.sampled_from([0, 0, 0.3, 2])),
        reduce=draw(st.sampled_from([0, 1])), step=draw(st.sampled_from([0, 0.5])),
    )  # fmt: skip
    memory = draw(st.sampled_from([None, "1f1b", "stage 1f1b", 1, 3]))
    mode = draw(st.sampled_from(["sync", "staggered"]))
    tied = tuple(sorted(draw(st.sets(st.integers(0, stages - 1)))))
    return Problem(stages, replicas, micro_batches, frozenset(dead), memory, mode, costs, tied)
