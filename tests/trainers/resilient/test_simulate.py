"""``cedar simulate``: a model and a cluster as data, steps with quantiles, failures, checkpoints, runs beside it."""

import json
import random
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from cedar.cli import main
from cedar.core.errors import CedarError
from cedar.trainers import simulation
from cedar.trainers.resilient.planner import plan
from cedar.trainers.resilient.schedule import Worker
from cedar.trainers.resilient.simulator import job as module
from cedar.trainers.resilient.simulator.checkpoints import (
    CheckpointOptions,
    Scheme,
    effective,
    schemes,
    smallest_window,
)
from cedar.trainers.resilient.simulator.job import (
    FailureOptions,
    Job,
    LinkOptions,
    Options,
    PipelineOptions,
    RunOptions,
    Spread,
    TimeOptions,
)

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "clusters"
GRID = PipelineOptions(stages=2, replicas=2, micro_batches=4, rows=8)
TIMES = TimeOptions(forward=0.1, backward_input=0.1, backward_weight=0.1)
QUICK = RunOptions(steps=20, hours=2.0, draws=3)


def job(**more):
    return Job(Options(**{"pipeline": GRID, "times": TIMES, "run": QUICK} | more))


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
    assert found.slower > 1
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
    (one,) = job(failures=FailureOptions(trace=str(trace)), run=replace(QUICK, systems=("resilient",))).survivals()
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


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def test_effective_time_is_what_the_formula_says():
    """1 / (1 + stall / (iteration * every)) / (1 + E[R] / MTBF), E[R] being half an interval where all go back."""
    for scheme, lost in (
        (Scheme("dense", every=50, stall=10.0, load=20.0), 50 * 1.2 / 2 + 20 + 30),
        (Scheme("local", every=10, lag=1.0, load=5.0, replay=0.8), (15 + 1 - 10 / 6) * 0.8 + 5 + 30),
    ):
        mtbf = 20_000.0
        found = statistics.fmean(effective(scheme, 1.0, 30.0, mtbf, 2e6, seed) for seed in range(5))
        expected = 1 / (1 + scheme.stall / scheme.every) / (1 + lost / mtbf)
        assert found == pytest.approx(expected, rel=2e-3)


def test_windows_fit_the_links_and_dense_checkpoints_follow_the_failures():
    options = CheckpointOptions(2e9, storage=1.0)
    often, rarely = schemes(options, 3.0, 600.0), schemes(options, 3.0, 36_000.0)
    assert often[0].every < rarely[0].every
    assert [one.every for one in often[1:]] == [one.every for one in rarely[1:]]
    assert smallest_window(replace(options, network=1e3, host=1e3), 3.0) == 1
    assert smallest_window(replace(options, network=12.0), 3.0) < smallest_window(replace(options, network=8.0), 3.0)


def test_what_is_saved_in_parts_outlives_failures_that_dense_checkpoints_do_not():
    found = {}
    for mtbf in (600.0, 36_000.0):
        for one in schemes(CheckpointOptions(2e9, storage=0.5), 3.0, mtbf, alone=0.8):
            found[one.name, mtbf] = effective(one, 3.0, 20.0, mtbf, 86_400)
    assert found["moevement", 600.0] > found["checkfreq", 600.0] > found["dense", 600.0]
    assert min(found[name, 36_000.0] for name in ("checkfreq", "gemini", "moevement")) > 0.98


# ---- against runs ----------------------------------------------------------------------------------------------------


def report(path, off=1.0):
    """Of a run that did as simulated, but for a factor: 12 steps, a failure, 12 more."""
    alone = job()
    dead = frozenset({Worker(1, 0)})
    times, now = [], 100.0
    for each in [alone.mean] * 12 + [plan(replace(alone.problem, dead=dead)).period] * 12:
        now += each * off
        times.append(now)
    failed = {"what": "failure", "worker": [1, 0], "decided": times[11] + 1e-3}
    durations = {f"{kind} {stage}": 0.1 for kind in ("F", "B_INPUT", "B_WEIGHT") for stage in range(2)}
    plain = {
        "durations": durations | {"transfer": 0.0}, "events": [{"what": "start", "worker": None, "decided": 0}, failed],
        "steps": [[step, when, 1.0] for step, when in enumerate(times)],
    }  # fmt: skip
    path.write_text(json.dumps(plain))
    return str(path)


def test_a_run_says_by_how_much_the_simulation_is_wrong(tmp_path):
    found = job().against(report(tmp_path / "report.json"))
    assert [(sorted(one.dead), one.steps) for one in found] == [([], 9), ([Worker(1, 0)], 9)]
    assert all(one.off < 1e-9 for one in found)
    assert all(one.off == pytest.approx(0.2) for one in job().against(report(tmp_path / "slow.json", off=1.25)))


def test_times_may_come_from_a_run(tmp_path):
    path = report(tmp_path / "report.json")
    assert job(times=TimeOptions(report=path)).mean == pytest.approx(job().mean)
    with pytest.raises(CedarError, match="is of another grid"):
        job(pipeline=replace(GRID, stages=1), times=replace(TIMES)).against(path)
    (tmp_path / "none.json").write_text("{}")
    with pytest.raises(CedarError, match=r"none.json is no report.json of a run"):
        job().against(str(tmp_path / "none.json"))


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command_prints_all_that_it_simulates(capsys, tmp_path):
    path = report(tmp_path / "report.json")
    grid = ["pipeline.stages=2", "pipeline.replicas=2", "pipeline.micro_batches=4", "run.draws=2", "run.hours=1"]
    times = ["times.forward=0.1", "times.backward_input=0.1", "times.backward_weight=0.1"]
    assert main(["simulate", str(EXAMPLES / "pipeline.toml"), *grid, *times, "--against", path]) == 0
    said = capsys.readouterr().out
    for word in ("rows per second", "oobleck", "10 min", "10 h", "moevement", "throughput left", "median off by"):
        assert word in said
    assert main(["simulate", str(EXAMPLES / "pipeline.toml"), *grid, *times, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == 2 * 4 * 4
    assert len(found["survivals"]) == 3 * 4


def test_the_example_of_checkpoints_is_a_configuration():
    found = simulation.forecast(str(EXAMPLES / "checkpoints.toml"), ["run.draws=2"])
    assert [name for _, name, _, _ in found.effective[:4]] == ["dense", "checkfreq", "gemini", "moevement"]
    assert not found.survivals


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ('run.systems=["slurm"]', "there is no system 'slurm'"),
        ("times.backward_weight=[0.1]", "times have 1 values for 4 stages"),
        ("times.forward={deviation=1}", "deviation is 1"),
        ("links.bandwidth=0", "bandwidth is 0"),
        ("failures.mtbf=[0]", "mtbf is (0"),
        ("pipeline.stage=3", "did you mean 'stages'"),
    ],
)
def test_what_cannot_be_simulated_is_told_in_a_line(capsys, change, told):
    assert main(["simulate", str(EXAMPLES / "pipeline.toml"), change]) == 1
    assert told in capsys.readouterr().err


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
