"""Stages on a cluster: what costs CPU and few bytes goes there, the rest stays."""

from __future__ import annotations

import pytest

import cedar
from cedar.optimizer.search import search
from cedar.plan import graph
from cedar.plan.data import Budget, Cluster
from tests.optimizer.toy_profiles import facts_of, figures

CLUSTER = Cluster("tcp://10.0.0.1:8786", threads=32, ship_seconds=2e-3, ship_bytes=2e8)
ROWS = [{"a": 1, "b": 2}]


def work(x):
    return x


def chosen(cpu, size, cluster=CLUSTER, gil=0.0, executors=("threads", "processes")):
    root = cedar.from_items(ROWS).map(work, "a").node
    measured = {0: figures(1e-7, columns={"a": size, "b": 8.0}), 1: figures(cpu, gil=gil, columns={"a": 8.0})}
    return search(root, facts_of(root, measured), Budget(), executors, 4, cluster=cluster)


def places(found):
    return {node.operator.name: node.place for node in graph.walk(found.root)}


def test_what_costs_cpu_and_few_bytes_goes_to_the_cluster():
    found = chosen(cpu=2e-3, size=8.0)
    assert places(found)["map"] == CLUSTER.address
    assert 2 * found.seconds < chosen(2e-3, 8.0, cluster=None).seconds
    (decision,) = [d for d in found.decisions if d.rule == "place"]
    assert decision.what.endswith(f"on {CLUSTER.address}")
    assert "2 ms of CPU per row, on 32 core(s) there" in decision.why


def test_what_costs_little_and_has_many_bytes_stays():
    assert places(chosen(cpu=2e-6, size=1e5)) == {"read": "threads", "map": "threads"}


@pytest.mark.parametrize("threads", [1, 2])
def test_a_small_cluster_is_not_worth_it(threads):
    small = Cluster(CLUSTER.address, threads, CLUSTER.ship_seconds, CLUSTER.ship_bytes)
    assert CLUSTER.address not in places(chosen(2e-3, 8.0, cluster=small)).values()


def test_processes_win_where_the_network_is_slow():
    slow = Cluster(CLUSTER.address, 32, 2e-3, 1e4)
    assert places(chosen(1e-3, 64.0, cluster=slow, gil=1.0))["map"] == "processes"


@pytest.mark.parametrize("wrong", ["somewhere", 3, ""])
def test_a_cluster_that_is_none_is_refused_at_the_users_line(wrong):
    with pytest.raises(cedar.PipelineError, match="neither the address") as caught:
        cedar.Budget(cluster=wrong)
    assert caught.value.site is not None
    assert caught.value.site.file == __file__
