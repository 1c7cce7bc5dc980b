"""Who is alive, by a fake clock: the lead's decisions."""

from __future__ import annotations

import pytest

from cedar.core.errors import CedarError
from cedar.trainers.resilient.control.beats import Clock
from cedar.trainers.resilient.control.board import Board, Epoch
from cedar.trainers.resilient.control.lead import Coordinator
from cedar.trainers.resilient.control.store import Values
from cedar.trainers.resilient.run import notify_supervisors
from cedar.trainers.resilient.schedule import Worker, grid

ALL = tuple(grid(2, 2))


class Run:
    """A lead with a clock, and supervisors that obey at once."""

    def __init__(self, machines: int = 1) -> None:
        self.board = Board(Values())
        self.lead = Coordinator(self.board, 2, 2, machines=machines, latest=lambda: "step-00000010", silence=5.0)
        self.now, self.step = 0.0, 0
        self.alive = [f"m{at}" for at in range(machines)]
        self.obeyed: dict[str, int] = {}
        for name in self.alive:
            self.board.report("machine", machine=name)

    def tick(self, seconds: float = 0.1, *, obey: bool = True) -> Epoch | None:
        self.now += seconds
        for name in self.alive:
            self.board.increment(f"machine/{name}")
        self.lead.tick(self.now, self.step)
        for name in self.alive if obey else []:
            for number in range(self.obeyed.get(name, 0) + 1, self.board.increment(f"orders/{name}", 0) + 1):
                self.obeyed[name] = number
                self.board.report("ready", worker=self.board.get(f"order/{name}/{number}"), machine=name)
        generation = self.board.generation()
        return self.board.epoch(generation) if generation else None

    def die(self, *workers: Worker, machine: str = "m0") -> None:
        for worker in workers:
            self.board.report("gone", worker=worker, machine=machine, time=1.0, why="killed")

    def begun(self) -> Epoch:
        self.tick()
        epoch = self.tick()
        assert epoch is not None
        assert epoch.members == ALL
        return epoch


def test_a_run_begins_when_every_place_is_filled() -> None:
    run = Run()
    assert run.tick(obey=False) is None
    epoch = run.begun()
    assert (epoch.number, epoch.restore, epoch.line) == (1, "", 1)


def test_deaths_that_are_heard_together_begin_one_generation() -> None:
    run = Run()
    run.begun()
    run.die(Worker(0, 0), Worker(1, 1))
    epoch = run.tick()
    assert epoch is not None
    assert (epoch.number, epoch.members, epoch.restore) == (2, (Worker(0, 1), Worker(1, 0)), None)
    assert [event.worker for event in run.lead.events[1:]] == [Worker(0, 0), Worker(1, 1)]


def test_a_new_worker_comes_in_at_a_boundary() -> None:
    run = Run()
    run.begun()
    run.die(Worker(0, 0))
    run.tick()
    assert run.lead.fill("m0") == [Worker(0, 0)]
    run.tick()
    run.tick()
    epoch = run.tick()
    assert epoch is not None
    assert epoch.number == 2  # every worker is asked to pause
    assert run.board.increment("pause/2", 0) == 1
    run.board.increment("paused/2", 3)
    epoch = run.tick()
    assert epoch is not None
    assert (epoch.members, epoch.joins) == (ALL, (Worker(0, 0),))


def test_a_death_while_everybody_pauses_does_not_wait() -> None:
    run = Run()
    run.begun()
    run.die(Worker(0, 0))
    run.tick()
    run.lead.fill("m0")
    run.tick()
    run.tick()
    run.die(Worker(1, 0))
    epoch = run.tick()
    assert epoch is not None
    assert (epoch.number, epoch.members, epoch.joins) == (3, (Worker(0, 1), Worker(1, 1)), ())
    run.tick()
    assert run.board.increment("pause/3", 0) == 1  # and the new one is still wanted


def test_workers_that_pause_for_one_that_died_continue() -> None:
    """They waited forever if they had paused after a stage had redone its steps."""
    run = Run()
    run.begun()
    run.die(Worker(0, 0))
    run.tick()
    run.lead.fill("m0")
    run.tick()
    run.tick()
    assert run.board.increment("pause/2", 0) == 1
    run.die(Worker(0, 0))
    epoch = run.tick()
    assert epoch is not None
    assert epoch.number == 2  # the others have not reached the boundary
    run.board.increment("paused/2", 3)
    epoch = run.tick()
    assert epoch is not None
    assert (epoch.number, epoch.members, epoch.joins) == (3, ALL[1:], ())
    assert run.lead.fill("m0") == [Worker(0, 0)]  # and its place can be filled again


def test_a_stage_without_a_worker_goes_back_to_the_last_checkpoint() -> None:
    run = Run()
    run.begun()
    run.step = 12
    run.die(Worker(1, 0), Worker(1, 1))
    run.tick()
    epoch = run.tick()
    assert epoch is not None
    assert (epoch.number, epoch.members, epoch.restore, epoch.line) == (2, ALL, "step-00000010", 2)


def test_going_back_again_and_again_ends() -> None:
    run = Run()
    run.begun()
    with pytest.raises(CedarError, match="went back to a checkpoint 5 times without progress: killed"):
        for _ in range(10):
            run.die(Worker(1, 0), Worker(1, 1))
            run.tick()
            run.tick()


def test_going_back_is_not_blamed_on_a_worker_that_died_long_before() -> None:
    run = Run()
    run.begun()
    run.die(Worker(0, 1))
    run.tick()
    run.step = 1
    with pytest.raises(CedarError) as error:
        for generation in range(2, 20):
            run.board.report("unlogged", generation=generation, worker=Worker(0, 0))
            run.tick()
    assert str(error.value).splitlines()[0] == "the run went back to a checkpoint 5 times without progress"


def test_new_workers_that_end_before_they_are_ready_are_not_started_forever() -> None:
    run = Run()
    run.begun()
    with pytest.raises(CedarError, match="new workers did not start 5 times without progress: killed"):
        for _ in range(10):
            run.die(Worker(1, 0), Worker(1, 1))
            run.tick(obey=False)


def test_a_silent_machine_is_gone_with_its_workers_and_a_spare_takes_over() -> None:
    run = Run(machines=2)
    run.begun()
    run.board.report("machine", machine="spare")
    run.alive.append("spare")
    run.tick()
    run.alive.remove("m1")
    for _ in range(4):
        epoch = run.tick(2.0)
    assert epoch is not None
    assert set(epoch.members) == {Worker(0, 0), Worker(1, 0)}
    assert run.lead.machines["spare"].roles == {Worker(0, 1), Worker(1, 1)}


def test_a_machine_that_is_lost_before_the_start_is_replaced() -> None:
    run = Run(machines=2)
    run.tick(obey=False)
    run.alive.remove("m1")
    for _ in range(4):
        assert run.tick(2.0) is None
    run.board.report("machine", machine="new")
    run.alive.append("new")
    run.tick()
    epoch = run.tick()
    assert epoch is not None
    assert epoch.members == ALL


def test_a_broken_connection_begins_a_generation_without_deaths() -> None:
    run = Run()
    run.begun()
    run.board.report("lost", generation=1, worker=Worker(0, 0), error="no route")
    epoch = run.tick()
    assert epoch is not None
    assert epoch.number == 1  # a death may be behind it: wait for that a little
    epoch = run.tick(2.0)
    assert epoch is not None
    assert (epoch.number, epoch.members) == (2, ALL)


def test_a_worker_that_does_not_start_ends_the_run() -> None:
    run = Run()
    run.tick(obey=False)
    run.board.report("error", worker=Worker(0, 0), error="no such file")
    run.die(Worker(0, 0))
    with pytest.raises(CedarError, match="did not start: killed: no such file"):
        run.tick()


def test_data_that_would_be_wrong_again_end_the_run_at_once() -> None:
    run = Run()
    run.begun()
    run.board.report("wrong", problem="data gave 13 rows", fix="give 16")
    with pytest.raises(CedarError, match="data gave 13 rows") as error:
        run.tick()
    assert error.value.fix == "give 16"


def test_connections_that_break_again_and_again_end_the_run() -> None:
    run = Run()
    run.begun()
    with pytest.raises(CedarError, match="connections broke 5 times without progress: no route"):
        for generation in range(1, 20):
            run.board.report("lost", generation=generation, worker=Worker(0, 0), error="no route")
            run.tick()
            run.tick(2.0)


def test_a_death_after_all_steps_does_not_leave_the_lead_waiting() -> None:
    run = Run()
    epoch = run.begun()
    run.board.increment(f"finished/{epoch.number}", 4)
    for worker in ALL[:3]:
        run.board.report("ended", worker=worker, digest="", peak=0, logs=0)
    run.die(ALL[3])
    with pytest.raises(CedarError, match="gone while the last checkpoint was written"):
        run.tick()


def test_a_lost_stage_restores_alone_until_it_has_done_its_steps_again() -> None:
    run = Run()
    run.lead.can_replay_alone = lambda lost: len(lost) == 1
    run.begun()
    run.die(Worker(1, 0), Worker(1, 1))
    run.tick()
    epoch = run.tick()
    assert epoch is not None
    assert (epoch.restore, epoch.lost, epoch.line) == ("step-00000010", (1,), 1)
    run.die(Worker(0, 0))  # before that is done
    epoch = run.tick()
    assert epoch is not None
    assert (epoch.number, epoch.restore, epoch.lost, epoch.line) == (3, "step-00000010", (1,), 1)
    for worker in (Worker(1, 0), Worker(1, 1)):
        run.board.report("replayed", generation=3, worker=worker)
    run.die(Worker(1, 0))
    epoch = run.tick()
    assert epoch is not None
    assert (epoch.number, epoch.restore, epoch.lost) == (4, None, ())


def test_where_something_was_not_logged_all_restore() -> None:
    run = Run()
    run.lead.can_replay_alone = lambda lost: True
    run.begun()
    run.die(Worker(1, 0), Worker(1, 1))
    run.tick()
    run.tick()
    run.board.report("unlogged", generation=2, worker=Worker(0, 0))
    epoch = run.tick()
    assert epoch is not None
    assert (epoch.number, epoch.restore, epoch.lost, epoch.line) == (3, "step-00000010", (), 3)


def test_a_worker_moves_by_a_new_process_that_joins_as_it_leaves() -> None:
    run = Run()
    run.begun()
    run.die(Worker(0, 0))
    run.tick()
    run.lead.move(Worker(1, 1), Worker(0, 0))
    run.tick()
    run.tick()
    run.board.increment("paused/2", 3)
    epoch = run.tick()
    assert epoch is not None
    assert epoch.members == (Worker(0, 0), Worker(0, 1), Worker(1, 0))
    assert (epoch.joins, epoch.leaves) == ((Worker(0, 0),), (Worker(1, 1),))
    assert run.lead.events[-1].what == "move"
    assert run.lead.fill("m0") == [Worker(1, 1)]  # its old place is free


def test_nobody_leaves_a_stage_that_would_be_empty() -> None:
    run = Run()
    run.begun()
    run.die(Worker(0, 0))
    run.tick()
    run.lead.move(Worker(1, 1), Worker(0, 0))
    run.die(Worker(1, 0))
    run.tick()
    run.tick()
    run.tick()
    run.board.increment("paused/3", 2)
    epoch = run.tick()
    assert epoch is not None
    assert (epoch.joins, epoch.leaves) == ((Worker(0, 0),), ())
    assert Worker(1, 1) in epoch.members


def test_the_store_stays_until_the_other_supervisors_have_left() -> None:
    run = Run(machines=3)
    run.begun()
    asked: list[float] = []

    class Own:
        name, clock = "m0", Clock(100.0, lambda: run.now)

        def tick(self) -> None:
            assert run.board.get("over")
            asked.append(run.now)
            run.now += 1
            self.clock.update()
            run.board.increment("machine/m0")
            if len(asked) < 4:
                run.board.increment("machine/m1")
            if len(asked) == 4:
                run.board.increment("left/m1")  # and m2 is silent forever

        def pause(self) -> None:
            pass

    notify_supervisors(run.board, run.lead, Own())  # type: ignore[arg-type]
    assert len(asked) > 5
    assert "m2" not in run.lead.machines
