"""The validator accepts what a plain model can carry out, and refuses every schedule that was spoilt."""

from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.simulate import one_f_one_b, zero_bubble
from cedar.trainers.resilient.planner import Problem, plan
from cedar.trainers.resilient.schedule import KINDS, Instruction, ScheduleError, Worker, grid, serve, validate

# ---- the plain model -------------------------------------------------------------------------------------------------


def carried_out(schedule):
    """What goes wrong when a schedule is carried out manually, None if nothing does.

    A pot of facts, of queues and of meetings; workers take turns, one instruction each, until nothing makes progress.
    """
    last, queues, facts = schedule.stages - 1, defaultdict(list), set()
    position, live, met = dict.fromkeys(schedule.work, 0), defaultdict(int), defaultdict(set)

    def step(worker, done):
        kind, stage, which = done.kind, worker.stage, (done.replica, done.micro_batch)
        serving = stage in schedule.serving
        if kind in {"ALL_REDUCE", "STEP"}:
            if serving or (worker, kind) in facts or (kind == "STEP" and (worker, "ALL_REDUCE") not in facts):
                return "misplaced"
            if any((worker, "F", *mb) in facts and (worker, "B_WEIGHT", *mb) not in facts for mb in all_of(schedule)):
                return "reduces too early"
            facts.add((worker, kind))
            return None
        if (worker, "ALL_REDUCE") in facts:
            return "comes too late"
        if which not in all_of(schedule) or kind not in KINDS:
            return "unknown"
        if (kind in {"SEND_F", "RECV_B"} and stage == last) or (kind in {"SEND_B", "RECV_F"} and stage == 0):
            return "leaves the pipeline"
        has = lambda *kinds: all((worker, k, *which) in facts for k in kinds)
        made = [kind] if kind != "B" else ["B_INPUT", "B_WEIGHT"]
        if any((worker, k, *which) in facts for k in made):
            return "twice"
        if serving and "B_WEIGHT" in made:
            return "serves only"
        needed = {
            "F": [] if stage == 0 else ["RECV_F"],
            "SEND_F": ["F"],
            "RECV_F": [],
            "RECV_B": ["SEND_F"],
            "B_INPUT": ["F"] if stage == last else ["F", "RECV_B"],
            "B": ["F"] if stage == last else ["F", "RECV_B"],
            "B_WEIGHT": ["B_INPUT"],
            "SEND_B": ["B_INPUT"],
        }[kind]
        if not has(*needed):
            return "too early"
        if kind[:4] in {"SEND", "RECV"}:
            other = done.other(worker)
            if other not in schedule.work:
                return "nothing there"
            if kind[:4] == "SEND":
                queues[worker, other].append(which)
            elif queues[other, worker].pop(0) != which:
                return "another message"
        if kind == "F":
            if (stage, *which) in facts:
                return "worked twice"
            facts.add((stage, *which))
            live[worker] += 1
            if schedule.caps[stage] is not None and live[worker] > schedule.caps[stage]:
                return "too much memory"
        if (serving and "B_INPUT" in made) or "B_WEIGHT" in made:
            live[worker] -= 1
        facts.update((worker, k, *which) for k in made)
        return None

    def blocked(worker, done):
        if done.kind[:4] == "RECV" and done.other(worker) in schedule.work:
            return not queues[done.other(worker), worker]
        if done.kind == "ALL_REDUCE" or (done.kind == "STEP" and schedule.mode == "sync"):
            met[done.kind].add(worker)
            ends = set(schedule.tied)
            same = lambda w: done.kind == "STEP" or w.stage == worker.stage or {w.stage, worker.stage} <= ends
            group = {w for w in schedule.work if same(w) and w.stage not in schedule.serving}
            return not group <= met[done.kind]
        return False

    if set(schedule.work) != set(grid(schedule.stages, schedule.replicas)) - schedule.dead:
        return "wrong workers"
    moved = True
    while moved:
        moved = False
        for worker, instructions in schedule.work.items():
            if position[worker] < len(instructions) and not blocked(worker, instructions[position[worker]]):
                wrong = step(worker, instructions[position[worker]])
                if wrong:
                    return wrong
                position[worker] += 1
                moved = True
    if any(position[worker] < len(instructions) for worker, instructions in schedule.work.items()):
        return "waits forever"
    if any(queues.values()):
        return "never received"
    for worker in schedule.work:
        if worker.stage not in schedule.serving and (worker, "STEP") not in facts:
            return "never steps"
        for which in all_of(schedule):
            if (worker, "F", *which) in facts:
                wanted = {"B_INPUT"} | ({"B_WEIGHT"} if worker.stage not in schedule.serving else set())
                wanted |= ({"SEND_F"} if worker.stage < last else set()) | ({"SEND_B"} if worker.stage else set())
                if not all((worker, k, *which) in facts for k in wanted):
                    return "half done"
            elif any((worker, k, *which) in facts for k in KINDS):
                return "half done"
    if any((stage, *which) not in facts for stage in range(schedule.stages) for which in all_of(schedule)):
        return "left out"
    return None


def all_of(schedule):
    return {(r, m) for r in range(schedule.replicas) for m in range(schedule.micro_batches)}


# ---- schedules, and ways to spoil them -------------------------------------------------------------------------------


@st.composite
def schedules(draw):
    stages, replicas, micro_batches = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    places = list(grid(stages, replicas))
    dead = draw(st.sets(st.sampled_from(places), max_size=3))
    kept = {Worker(stage, draw(st.integers(0, replicas - 1))) for stage in range(stages)}
    problem = Problem(
        stages, replicas, micro_batches, frozenset(dead - kept),
        draw(st.sampled_from([None, "1f1b", "stage 1f1b", 1, 3])), draw(st.sampled_from(["sync", "staggered"])),
        tied=tuple(sorted(draw(st.sets(st.integers(0, stages - 1))))),
    )  # fmt: skip
    made = draw(st.sampled_from([lambda p: plan(p).schedule, one_f_one_b, zero_bubble]))(problem)
    serving = draw(st.sets(st.integers(0, stages - 1), max_size=stages)) if draw(st.booleans()) else set()
    if serving & set(made.tied):
        serving |= set(made.tied)
    return serve(made, frozenset(serving)) if serving else made


def put(schedule, worker, instructions):
    return replace(schedule, work={**schedule.work, worker: tuple(instructions)})


def place(draw, schedule):
    worker = draw(st.sampled_from([w for w in schedule.live if schedule.work[w]] or [None]))
    return worker, draw(st.integers(0, len(schedule.work[worker]) - 1)) if worker else 0


@given(schedules())
def test_what_planners_make_is_accepted_by_the_validator_and_by_the_model(schedule):
    validate(schedule)
    assert carried_out(schedule) is None


@given(st.data())
def test_the_validator_and_the_model_agree_on_spoilt_schedules(data):
    schedule = data.draw(schedules())
    for _ in range(data.draw(st.integers(1, 2))):
        worker, at = place(data.draw, schedule)
        if worker is None:
            return
        steps = list(schedule.work[worker])
        how = data.draw(st.sampled_from(["swap", "neighbors", "change", "move", "cap", "deliver"]))
        if how == "swap":
            other = data.draw(st.integers(0, len(steps) - 1))
            steps[at], steps[other] = steps[other], steps[at]
        elif how == "neighbors" and at:
            steps[at - 1], steps[at] = steps[at], steps[at - 1]
        elif how == "change":
            kind = data.draw(st.sampled_from([*KINDS, steps[at].kind]))
            numbers = [data.draw(st.sampled_from([steps[at][i], 0, 1, -1, 3])) for i in (1, 2, 3)]
            steps[at] = Instruction(kind, *numbers)
        elif how == "move":
            steps.insert(data.draw(st.integers(0, len(steps) - 1)), steps.pop(at))
        elif how == "cap":
            caps = [data.draw(st.sampled_from([None, 1, 2])) for _ in range(schedule.stages)]
            schedule = replace(schedule, caps=tuple(caps))
        else:
            taker = data.draw(st.sampled_from(schedule.live))
            if taker != worker:
                schedule = put(schedule, taker, (steps.pop(at), *schedule.work[taker]))
        schedule = put(schedule, worker, steps)
    wrong = carried_out(schedule)
    if wrong is None:
        validate(schedule)
    else:
        with pytest.raises(ScheduleError):
            validate(schedule)


@given(st.data())
def test_a_dropped_a_doubled_and_a_rerouted_instruction_are_always_refused(data):
    schedule = data.draw(schedules())
    worker, at = place(data.draw, schedule)
    if worker is None:
        return
    steps = list(schedule.work[worker])
    step = steps[at]
    for spoilt in (steps[:at] + steps[at + 1 :], [*steps[: at + 1], *steps[at:]]):
        with pytest.raises(ScheduleError):
            validate(put(schedule, worker, spoilt))
    if step.peer >= 0:
        for peer in range(-1, schedule.replicas + 1):
            if peer != step.peer:
                with pytest.raises(ScheduleError):
                    validate(put(schedule, worker, [*steps[:at], step._replace(peer=peer), *steps[at + 1 :]]))


# ---- each promise by name --------------------------------------------------------------------------------------------


def base(**changes):
    return plan(Problem(**{"stages": 2, "replicas": 2, "micro_batches": 2} | changes)).schedule


def index(schedule, worker, kind, which=(0, 0)):
    return next(i for i, s in enumerate(schedule.work[worker]) if s.kind == kind and s[1:3] == which)


def moved(schedule, worker, kind, to, which=(0, 0)):
    steps = list(schedule.work[worker])
    steps.insert(to, steps.pop(index(schedule, worker, kind, which)))
    return put(schedule, worker, steps)


def refused(schedule, *told):
    with pytest.raises(ScheduleError) as error:
        validate(schedule)
    for text in told:
        assert text in str(error.value)


def test_each_broken_promise_is_told_by_worker_and_instruction():
    good, first, last = base(), Worker(0, 0), Worker(1, 0)
    refused(moved(good, first, "B_WEIGHT", 0), "(0, 0), instruction 0: B_WEIGHT 0.0 comes before B_INPUT 0.0")
    refused(moved(good, last, "F", 0), "(1, 0), instruction 0: F 0.0 comes before RECV_F 0.0")
    steps = good.work[first]
    refused(put(good, first, [*steps[:-2], steps[-1], steps[-2]]), "STEP does not belong here")
    refused(put(good, first, steps[:-1]), "does not end with ALL_REDUCE and STEP")
    early = list(steps)
    early.insert(len(steps) - 3, early.pop(len(steps) - 2))
    refused(put(good, first, early), "ALL_REDUCE comes before B_WEIGHT")
    refused(put(good, first, [*steps, steps[0]]), "comes after ALL_REDUCE")
    refused(replace(good, caps=(1, 1)), "keeps 2 activations, the cap is 1")
    refused(replace(good, caps=(1,)), "1 memory caps for 2 stages")
    refused(replace(good, mode="fast"), "'fast'")
    refused(replace(good, serving=frozenset({7})), "serves at stages [7]")
    refused(replace(good, micro_batches=3), "0.2 is not worked at stage 0")
    refused(replace(good, stages=0, caps=(None,)), "stages is 0")


def test_lists_of_dead_missing_and_unknown_workers_are_refused():
    good = base()
    refused(replace(good, dead=frozenset({Worker(0, 1)})), "(0, 1) has a list, but is not a live worker")
    refused(replace(good, dead=frozenset({Worker(5, 1)})), "(5, 1) is not in the grid")
    refused(replace(good, work={Worker(0, 0): ()}), "is alive, but has no list")
    refused(replace(good, dead=frozenset({Worker(1, 0), Worker(1, 1)})), "stage 1 has no live worker", "checkpoint")


def test_a_micro_batch_worked_by_two_workers_is_refused():
    good = base(stages=1)
    extra = [Instruction("F", 0, 0), Instruction("B", 0, 0)]
    refused(put(good, Worker(0, 1), [*extra, *good.work[Worker(0, 1)]]), "F 0.0 is done by another worker, too")


def test_messages_received_in_another_order_than_sent_are_refused():
    good = base()
    worker = Worker(1, 0)
    first, second = index(good, worker, "RECV_F"), index(good, worker, "RECV_F", (0, 1))
    steps = list(good.work[worker])
    steps.insert(first, steps.pop(second))
    refused(put(good, worker, steps), "message 0 from (0, 0) to (1, 0) is sent as 0.0 and received as 0.1")


def test_workers_that_wait_for_each_other_are_refused_and_named():
    lists = base(replicas=1)
    upper, lower = list(lists.work[Worker(0, 0)]), list(lists.work[Worker(1, 0)])
    # the gradients of the first before the activations of the second, which the other end wants first
    kinds = [step for step in upper if step[1:3] == (0, 0)] + [step for step in upper if step[1:3] == (0, 1)]
    upper = [*kinds, *upper[-2:]]
    both = [s for s in lower if s.kind == "RECV_F"] + [s for s in lower if s.kind != "RECV_F"]
    spoilt = put(put(lists, Worker(0, 0), upper), Worker(1, 0), both)
    refused(spoilt, "(0, 0) at RECV_B 0.0", "(1, 0) at RECV_F 0.1", "wait forever")


def test_facts_tell_peaks_and_the_one_order_of_each_pair():
    schedule = plan(Problem(2, 2, 3, frozenset({Worker(1, 1)}), memory=3)).schedule
    facts = validate(schedule)
    assert max(facts.live.values()) <= 3
    assert {len(m) for pair, m in facts.channels.items() if pair[1] == (1, 0)} == {3}
    assert set(facts.channels) == {
        (Worker(0, 0), Worker(1, 0)), (Worker(0, 1), Worker(1, 0)),
        (Worker(1, 0), Worker(0, 0)), (Worker(1, 0), Worker(0, 1)),
    }  # fmt: skip
