"""The cost model, manually."""

from dataclasses import dataclass

import pytest

import cedar
from cedar import col
from cedar.operators.base import Effects, RowOperator
from cedar.optimizer.cost import RESOURCES, as_written
from cedar.plan.places import REMOTE
from cedar.profile import Machine
from tests.optimizer.toy_costs import ROWS, first, measured, two_maps
from tests.optimizer.toy_profiles import cost_of, facts_of, figures, model_of


def use(cost, order, places=None, start=0):
    return dict(zip(RESOURCES, cost.evaluate(order, places or (0,) * len(order), start), strict=True))


def test_an_operator_costs_what_reaches_it():
    root = two_maps()
    found = use(cost_of(root, facts_of(root, measured())), (0, 1, 2))
    assert found["cores"] == pytest.approx((1 + 2 + 0.25 * 40 + 0.25 * 10) * 1e-6 / 4)
    assert found["GIL"] == pytest.approx(0.25 * (20 + 10) * 1e-6)
    late = use(cost_of(root, facts_of(root, measured())), (1, 2, 0))
    assert late["cores"] == pytest.approx((1 + 40 + 10 + 2) * 1e-6 / 4)


def test_waiting_keeps_workers_and_no_core():
    root = two_maps()
    facts = facts_of(root, measured(o2=figures(40e-6, wall=2040e-6)))
    found = use(cost_of(root, facts, workers=8), (0, 1, 2))
    assert found["workers"] == pytest.approx((3 + 0.25 * 2050) * 1e-6 / 8)
    assert found["cores"] == pytest.approx((3 + 0.25 * 50) * 1e-6 / 4)


def test_only_what_is_needed_is_shipped():
    root = two_maps().inputs[0]
    root = cedar.Pipeline(root).select("a").node
    facts = facts_of(root, measured(o3=figures(0.0, columns={"a": 8.0})))
    cost = cost_of(root, facts, places=("threads", REMOTE))
    here, there = use(cost, (0, 1, 2)), use(cost, (0, 1, 2), (0, 1, 0))
    tasks = 0.25 * 40e-6 / 0.1 * 5e-4
    assert there["process shipping"] == pytest.approx(0.25 * (8 + 8) / 1e9 + tasks)  # a, there and back; b, c are dead
    assert there["GIL"] == pytest.approx(here["GIL"] - 0.25 * 20e-6)
    assert there["cores"] == pytest.approx(here["cores"] + there["process shipping"] / 4)
    early = use(cost, (1, 0, 2), (1, 0, 0))
    assert early["process shipping"] == pytest.approx(2 * (8 + 8) / 1e9 + 4 * tasks)  # the filter still needs b


def test_reading_in_a_process_ships_only_what_comes_out():
    root = cedar.from_items(ROWS).filter(col("b") > 1).node
    facts = facts_of(root, measured())
    cost = cost_of(root, facts, places=("threads", REMOTE))
    found = use(cost, (0,), (1,), start=1)
    assert found["process shipping"] == pytest.approx(0.25 * 116 / 1e9 + 5e-4 / 100)
    back = use(cost, (0,), (0,), start=1)
    assert back["process shipping"] == pytest.approx(116 / 1e9 + 5e-4 / 100)


def test_python_per_row_begins_a_stage_of_its_own():
    root = cedar.from_items(ROWS).map(first, "a").node
    cost = cost_of(root, facts_of(root, {0: measured()[0], 1: measured()[2]}), places=(REMOTE,))
    found = use(cost, (0,))
    tasks = 5e-4 / 100 + 40e-6 / 0.1 * 5e-4
    assert found["process shipping"] == pytest.approx(3 * 116 / 1e9 + tasks)  # out of the reader, in, and out again


@dataclass(frozen=True)
class Transform(RowOperator):
    """Changes one column in a declared way."""

    kind: str
    column: str = "image"
    name = "transform"

    def label(self):
        return self.kind

    def effects(self):
        names = frozenset({self.column})
        return Effects(names, names, algebra=self.kind)

    def schema(self, *inputs):
        return inputs[0]

    def bind(self, bound):
        raise NotImplementedError


def test_an_operator_behind_one_that_shrinks_its_column_costs_less():
    rows = cedar.from_items([{"image": b"x", "label": 1}])
    root = rows.apply(Transform("pointwise")).apply(Transform("spatial")).node
    found = {
        0: figures(0.0, columns={"image": 1000.0, "label": 8.0}),
        1: figures(40e-6, columns={"image": 4000.0}),  # to floats
        2: figures(8e-6, columns={"image": 400.0}),  # a tenth of it
    }
    cost = cost_of(root, facts_of(root, found))
    assert use(cost, (0, 1))["cores"] == pytest.approx(48e-6 / 4)
    assert use(cost, (1, 0))["cores"] == pytest.approx((8e-6 / 4 + 40e-6 / 10) / 4)
    assert [cost.bytes(done) for done in range(4)] == pytest.approx([1008, 4008, 108, 408])


def test_a_scan_without_a_column_reads_less():
    from cedar.plan.graph import Node, Scan

    logical = two_maps()
    read = next(n for n in _walk(logical) if not n.inputs)
    facts = facts_of(logical, measured())
    where = next(n for n in _walk(logical) if n.operator.name == "filter")
    scan = Node(Scan(read.operator.source, ("a",), (where,)), (), origin=read)
    cost = cost_of(scan, facts)
    found = use(cost, ())
    assert found["cores"] == pytest.approx((1e-6 * 16 / 116 + 2e-6) / 4)
    assert cost.rate(0) == pytest.approx(0.25)
    assert cost.bytes(0) == pytest.approx(0.25 * 8)


def _walk(root):
    from cedar.plan import graph

    return list(graph.walk(root))


def test_rows_of_several_sources_add_up():
    left, right = cedar.from_items(ROWS).map(first, "a"), cedar.from_items(ROWS)
    root = cedar.concat(left, right).filter(col("a") > 0).node
    found = {
        0: figures(1e-6, rows=3000), 1: figures(4e-6), 2: figures(1e-6, rows=1000), 4: figures(2e-6, keep=0.5)
    }  # fmt: skip
    model = model_of(root, facts_of(root, found))
    costs = {cost.chain.top.operator.name: cost for cost in model.costs}
    assert costs["map"].rate(0) == 0.75
    assert costs["read"].rate(0) == 0.25
    assert costs["filter"].rate(0) == 1.0
    assert not costs["filter"].chain.sources
    assert max(model.use([as_written(cost, 0) for cost in model.costs])) == pytest.approx((1 + 3 + 2) * 1e-6 / 4)


def test_a_machine_without_cores_to_spare_is_not_sped_up_by_workers():
    root = two_maps()
    facts = facts_of(root, measured(), machine=Machine(2, 1 << 30))
    few = model_of(root, facts, cores=2, workers=1)
    many = model_of(root, facts, cores=2, workers=8)
    assert max(few.use([as_written(c, 0) for c in few.costs])) == pytest.approx(15.5e-6)
    assert max(many.use([as_written(c, 0) for c in many.costs])) == pytest.approx(7.75e-6)
