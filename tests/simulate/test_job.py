"""A model and a cluster as data: steps with quantiles, failures, runs next to it."""

import random
import statistics
from dataclasses import replace

import pytest

from cedar.core.errors import CedarError
from cedar.simulate import job as module
from cedar.simulate.job import FailureOptions, LinkOptions, Spread, TimeOptions
from cedar.trainers.resilient.planner import plan
from cedar.trainers.resilient.schedule import Worker
from tests.simulate.toy_job import GRID, QUICK, TIMES, job, report

# ---- steps -----------------------------------------------------------------------------------------------------------


def test_times_that_do_not_differ_give_steps_that_do_not():
    found = job(links=LinkOptions(message=100.0, bandwidth=10.0))
    assert found.message.mean == pytest.approx(0.01)
    assert found.problem.costs.transfer == pytest.approx(0.01)
    assert found.step == pytest.approx((found.mean,) * 3)
    assert found.mean == pytest.approx(plan(found.problem).period)


def test_a_spread_has_the_mean_and_the_deviation_that_it_says():
    draws, spread = random.Random(1), Spread(2.0, 0.5)
    values = [spread.draw(draws) for _ in range(20_000)]
    assert statistics.fmean(values) == pytest.approx(2.0, rel=0.02)
    assert statistics.pstdev(values) == pytest.approx(0.5, rel=0.05)
    samples = Spread(samples=(1.0, 3.0))
    assert {samples.draw(draws) for _ in range(50)} == {1.0, 3.0}
    assert samples.mean == 2.0


def test_steps_that_wait_for_the_slowest_take_longer_than_their_means():
    wide = TimeOptions(Spread(0.1, 0.05), Spread(0.1, 0.05), (Spread(0.1, 0.05), 0.1), step=0.02)
    found = job(times=wide)
    low, middle, high = found.step
    assert low < middle < high
    assert middle > found.mean
    assert found.slowdown > 1
    assert job(times=wide).step == found.step, "draws follow from the seed"
    assert job(times=wide, run=replace(QUICK, seed=1)).step != found.step


# ---- failures --------------------------------------------------------------------------------------------------------


def test_rare_failures_cost_nothing_and_frequent_ones_more():
    failures = FailureOptions(mtbf=(1e9, 300.0), repair=60.0)
    found = {(one.mtbf, one.system): one for one in job(failures=failures).survivals()}
    assert len(found) == 8
    assert all(one.ratio.middle == pytest.approx(1.0) for (mtbf, _), one in found.items() if mtbf == 1e9)
    worst = found[300.0, "drop a replica"]
    assert worst.ratio.low < worst.ratio.middle < worst.ratio.high < 1
    assert worst.rate.middle < found[300.0, "resilient"].rate.middle


def test_a_trace_stands_in_for_failures_that_are_drawn(tmp_path):
    trace = tmp_path / "spot.csv"
    trace.write_text("".join(f"0,add,n{n}\n" for n in range(4)) + "3600000,remove,n0\n7200000,remove,n3\n")
    (one,) = job(
        failures=FailureOptions((60.0, 90.0), trace=str(trace)), run=replace(QUICK, systems=("resilient",))
    ).survivals()
    assert one.mtbf == 0
    assert 0.5 < one.ratio.middle < 1


def test_shares_of_workers_that_are_dead_at_once():
    found = list(job(failures=FailureOptions(rates=(0.25,))).at_rates())
    assert [system for _, system, _ in found] == ["resilient", "oobleck", "bamboo", "drop a replica"]
    assert all(0 < share <= 1 for _, _, share in found)


def test_stages_that_take_as_long_are_planned_for_once():
    found = job(pipeline=replace(GRID, stages=3))
    assert found.period(frozenset({Worker(0, 1)})) == found.period(frozenset({Worker(2, 0)}))
    assert len(found._known) == 1


# ---- against runs ----------------------------------------------------------------------------------------------------


def test_a_run_says_by_how_much_the_simulation_is_wrong(tmp_path):
    found = job().against(report(tmp_path / "report.json"))
    assert [(sorted(one.dead), one.steps) for one in found] == [([], 9), ([Worker(1, 0)], 9)]
    assert all(one.off < 1e-9 for one in found)
    assert all(one.off == pytest.approx(0.2) for one in job().against(report(tmp_path / "slow.json", off=1.25)))


@pytest.mark.parametrize("change", ["restore", "replay", "move"])
def test_workers_are_those_that_took_part_after_any_change(tmp_path, change):
    found = job().against(report(tmp_path / "report.json", change=change))
    assert [(sorted(one.dead), one.steps) for one in found] == [([], 9), ([Worker(1, 0)], 9)]
    with pytest.raises(CedarError, match="is from another grid"):
        job(pipeline=replace(GRID, replicas=3)).against(report(tmp_path / "report.json", change=change))


def test_times_may_come_from_a_run(tmp_path):
    path = report(tmp_path / "report.json")
    assert job(times=TimeOptions(report=path)).mean == pytest.approx(job().mean)
    with pytest.raises(CedarError, match="has the times of 2 stages, not of 3"):
        job(pipeline=replace(GRID, stages=3), times=TimeOptions(report=path))
    with pytest.raises(CedarError, match="is from another grid"):
        job(pipeline=replace(GRID, stages=1), times=replace(TIMES)).against(path)
    (tmp_path / "none.json").write_text("{}")
    with pytest.raises(CedarError, match=r"none.json is not a report.json of a run"):
        job().against(str(tmp_path / "none.json"))


def test_times_that_are_all_zero_are_refused():
    with pytest.raises(CedarError, match="no instruction takes any time"):
        job(times=TimeOptions())


def test_steps_are_drawn_from_the_plan_of_cp_sat_where_it_is_asked(monkeypatch):
    better, asked = plan(replace(job().problem, memory=None)), []  # as if CP-SAT had found it
    monkeypatch.setattr(module, "exact", lambda problem, seconds: asked.append((problem.dead, seconds)) or better)
    found = job(pipeline=replace(GRID, exact=5.0))
    assert found.mean == better.period < job().mean
    assert found.step == pytest.approx((better.period,) * 3)
    assert asked == [(frozenset(), 5.0)]
    with pytest.raises(ValueError, match="exact is -1"):
        replace(GRID, exact=-1.0)


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="mode is 'async': give one of sync, staggered"):
        replace(GRID, mode="async")
