"""Sparse checkpoints of a pipeline: a stage that has lost all its workers replays from the newest whole window."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from cedar.core.errors import CedarError
from cedar.nn import Router, SymiMoE
from cedar.trainers import AdamWOptions, PipelineOptions, ResilientPipeline, RunOptions, TorchOptimizer, Workers
from cedar.trainers.common.checkpoint import path_of, read_index, steps
from cedar.trainers.common.compute import keyed
from cedar.trainers.resilient.control.board import Board, Epoch
from cedar.trainers.resilient.control.protocol import WINDOW
from cedar.trainers.resilient.control.store import Values
from cedar.trainers.resilient.data import MicroBatches, Source
from cedar.trainers.resilient.model import AdamW, Engine, State
from cedar.trainers.resilient.schedule import Worker, grid
from cedar.trainers.resilient.windows import SparseCheckpoints, find_operators, newest_window, whole_windows
from tests.how_much import cases
from tests.trainers.resilient import toy_grid
from tests.trainers.resilient.toy_grid import Crew, Killed, job
from tests.trainers.resilient.toy_grid import engine as tied

WIDTH, STEPS = 6, 9
MODES = ["sync", "staggered"]


class Experts(nn.Module):
    """Stacked experts, as Mixtral's grouped kernels have them."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(4, WIDTH, 5) * 0.3)
        self.down = nn.Parameter(torch.randn(4, 5, WIDTH) * 0.3)
        self.bias = nn.Parameter(torch.zeros(4, 5))

    def forward(self, x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        hidden = functional.gelu(torch.einsum("bd,edf->bef", x, self.up) + self.bias)
        return torch.einsum("bef,efd,be->bd", hidden, self.down, gates)


class Mixture(nn.Module):
    """Top-1 of four experts in plain torch, stacked, or modules by themselves."""

    def __init__(self, stage: int, outputs: int) -> None:
        super().__init__()
        self.norm, self.router, self.drop = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4), nn.Dropout(0.1)
        stacked = stage % 2
        self.experts = Experts() if stacked else nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.out = nn.Linear(WIDTH, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        chances = self.router(y).softmax(-1)
        best = chances.argmax(-1, keepdim=True)
        gates = torch.zeros_like(chances).scatter(1, best, chances.gather(1, best))
        if isinstance(self.experts, nn.ModuleList):
            mixed = torch.stack([expert(y) * gates[:, at, None] for at, expert in enumerate(self.experts)]).sum(0)
        else:
            mixed = self.experts(y, gates)
        found: torch.Tensor = self.out(x + self.drop(mixed))
        return found


def modules() -> list[nn.Module]:
    with keyed("cpu", 5):  # threads make them at the same time
        return [Mixture(stage, 3 if stage == 2 else WIDTH) for stage in range(3)]


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(step)
    return torch.randn(12, WIDTH, generator=draw), torch.randint(0, 3, (12,), generator=draw)


def engine(stage: int, *_: object, dtype: torch.dtype | None = None) -> Engine:
    made = Engine(
        modules()[stage], stage, 3, functional.cross_entropy, prefix=f"{stage}.", share=1 / 6, dtype=dtype
    )  # fmt: skip
    made.find_signatures(torch.zeros(2, WIDTH, dtype=dtype))
    made.load(made.initial_state)
    return made


# ---- one stage, step by step -----------------------------------------------------------------------------------------


def sparse(folder: Path, mine: Engine, window: Any, replica: int = 0, board: Board | None = None) -> SparseCheckpoints:
    worker = Worker(mine.number, replica)
    return SparseCheckpoints(
        str(folder), worker, mine.layout, board or Board(Values()), engine=mine, window=window, stages=3, keep=1
    )  # fmt: skip


def gradient(mine: Engine, step: int) -> torch.Tensor:
    """Of a middle stage, from inputs and gradients that follow from the step."""
    draw, total = torch.Generator().manual_seed(step), torch.zeros_like(mine.initial_state.master)
    for number in range(2):
        x, slope = torch.randn(2, 4, WIDTH, generator=draw)
        given = mine.forward(step, (0, number), x.to(mine.dtype))
        mine.backward_input((0, number), slope.to(given.dtype))
        total += mine.backward_weight((0, number))
    return total


RULES: list[Any] = [
    AdamW(AdamWOptions(rate=1e-1, schedule="constant", clip=0.0)),
    TorchOptimizer(lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)),
]


def trained(
    mine: Engine, rule: Any, each: Callable[[State], None] = lambda _: None, state: State | None = None, **how: Any
) -> list[State]:
    """The states before each step; ``thaw`` follows one that is not whole."""
    states = [state or mine.initial_state]
    while states[-1].version < STEPS:
        last = states[-1]
        each(last)
        mine.load(last, how["frozen"]() if "frozen" in how and last.whole_at else ())
        scale = None if last.version == 7 else 1.0  # a step that was skipped
        after = rule.step(last, gradient(mine, last.version), mine.layout, scale)
        states.append(how["thaw"](after, last.whole_at) if last.whole_at else after)
    return states


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [1, 2, 3, 4])
@pytest.mark.parametrize("rule", RULES)
def test_a_replay_ends_with_the_bits_that_were_lost(tmp_path: Path, window: int, dtype: torch.dtype, rule: Any) -> None:
    mine, epoch = engine(1, dtype=dtype), Epoch(1, (Worker(1, 0),))
    saver = sparse(tmp_path, mine, window)
    states = trained(mine, rule, lambda state: saver.begin_step(state, epoch))
    saver.wait()
    again = sparse(tmp_path, mine, window)
    path = newest_window(str(tmp_path), STEPS)
    begun = again.load(path)
    assert begun.version == (STEPS // window - 1) * window
    replayed = trained(mine, rule, state=begun, thaw=again.thaw, frozen=lambda: again.frozen)
    whole = [state for state in replayed if not state.whole_at]
    assert whole[0].version == begun.version + window - 1
    for state in whole:
        lost = states[state.version]
        assert (state.version, state.updates) == (lost.version, lost.updates)
        for kind in ("master", "first", "second"):
            assert torch.equal(getattr(state, kind), getattr(lost, kind)), (kind, state.version)
    for state in replayed:  # frozen operators compute with the weights that they had
        mine.load(state)
        there = [parameter.clone() for parameter in mine.parameters]
        mine.load(states[state.version])
        assert all(map(torch.equal, there, mine.parameters))


def test_a_slot_holds_its_own_operators_the_weights_of_later_ones_and_nothing_else(tmp_path: Path) -> None:
    mine = engine(1, dtype=torch.bfloat16)
    saver, epoch = sparse(tmp_path, mine, 3), Epoch(1, (Worker(1, 0),))
    states = trained(mine, RULES[0], lambda state: saver.begin_step(state, epoch) if state.version < 3 else None)
    saver.wait()
    seen = torch.zeros(mine.layout.size)
    sizes = []
    for at in range(3):
        entries = read_index(path_of(str(tmp_path), at)).entries
        kinds = {}
        for kind in ("master", "first", "second", "weights"):
            held = torch.zeros(mine.layout.size)
            for name, view in mine.layout.pieces(held).items():
                for piece in entries[f"{name}.{kind}"].pieces if f"{name}.{kind}" in entries else ():
                    view[tuple(slice(a, a + n) for a, n in zip(piece.box.start, piece.box.shape, strict=True))] += 1
            kinds[kind] = held
        assert torch.equal(kinds["master"], kinds["first"])
        assert torch.equal(kinds["master"], kinds["second"])
        assert kinds["master"].sum()
        seen += kinds["master"]
        assert torch.equal(seen + kinds["weights"], torch.ones(mine.layout.size))
        assert all(entry.dtype == torch.bfloat16 for name, entry in entries.items() if name.endswith("weights"))
        sizes.append(12 * float(kinds["master"].sum()) + 2 * float(kinds["weights"].sum()))
    assert torch.equal(seen, torch.ones(mine.layout.size))
    assert max(sizes) < 0.6 * 12 * mine.layout.size
    assert states[0].whole_at == 0


def test_no_gradients_of_frozen_parameters_are_worked_out(tmp_path: Path) -> None:
    mine = engine(1)
    saver, epoch = sparse(tmp_path, mine, 4), Epoch(1, (Worker(1, 0),))
    trained(mine, RULES[0], lambda state: saver.begin_step(state, epoch))
    saver.wait()
    state = saver.load(newest_window(str(tmp_path), STEPS))
    assert {"1.out.weight", "1.router.weight"} <= saver.frozen
    assert not {name for name in saver.frozen if ".experts." in name}  # a row of each has thawed
    mine.load(state, saver.frozen)
    pieces = mine.layout.pieces(gradient(mine, 4))
    mine.load(state)
    for name, whole in mine.layout.pieces(gradient(mine, 4)).items():
        assert torch.equal(pieces[name], torch.zeros_like(whole) if name in saver.frozen else whole)


def test_experts_are_found_in_the_ways_that_they_are_written() -> None:
    def names(module: nn.Module) -> list[Any]:
        return find_operators(Engine(module, 1, 3, functional.mse_loss))

    rows = {"experts.up", "experts.down", "experts.bias"}
    stacked = names(modules()[1])
    assert stacked[:4] == [dict.fromkeys(rows, range(at, at + 1)) for at in range(4)]
    assert stacked[4:] == [{name: None} for name in dict(modules()[1].named_parameters()) if "experts" not in name]
    assert names(modules()[0])[:4] == [{f"experts.{at}.weight": None, f"experts.{at}.bias": None} for at in range(4)]
    symi = nn.Sequential(SymiMoE(lambda _: nn.Linear(WIDTH, WIDTH), Router(WIDTH, experts=3)))
    assert names(symi)[:3] == [{"0.weights": range(at, at + 1)} for at in range(3)]
    plain = nn.Sequential(nn.Linear(2, 3), nn.Conv1d(4, 4, 1))
    assert names(plain) == [{name: None} for name, _ in plain.named_parameters()]
    shared = nn.ModuleDict({"shared_expert": nn.Linear(3, 4)})
    assert names(shared) == [{"shared_expert.weight": None}, {"shared_expert.bias": None}]


@pytest.mark.parametrize(("last_write", "expected"), [((1 << 60, 1e-3), 1), ((1, 1e9), 10)])
def test_auto_wants_as_many_steps_as_the_disk_needs(
    tmp_path: Path, last_write: tuple[int, float], expected: int
) -> None:
    mine, board, epoch = engine(1), Board(Values()), Epoch(1, (Worker(1, 0),))
    saver = sparse(tmp_path, mine, "auto", board=board)
    for version in range(8):
        if version == 7:
            saver.wait()
            saver.last_write = last_write
        assert board.get(WINDOW(1)) is None
        saver.begin_step(replace(mine.initial_state, version=version), epoch)
    assert board.get(WINDOW(1)) == expected
    assert whole_windows(str(tmp_path)) == {0: 0}  # what was measured
    for stage, steps_wanted in ((0, 2), (2, 3)):
        saver.begin_step(replace(mine.initial_state, version=8 + stage), epoch)
        board.put(WINDOW(stage), steps_wanted)
    saver.begin_step(replace(mine.initial_state, version=30), epoch)
    saver.wait()
    first, last, _ = read_index(path_of(str(tmp_path), 30)).state["window"]
    assert last - first + 1 == max(3, expected)
    assert steps(str(tmp_path)) == [0, 30]


# ---- windows that count, and those that do not -----------------------------------------------------------------------


def saved(folder: Path, versions: range, window: int = 2, line: int = 1, number: int = 1) -> None:
    board, mine, peers = Board(Values()), engine(1), (Worker(1, 0), Worker(1, 1))
    parts = [sparse(folder, mine, window, replica, board) for replica in range(2)]
    for version in versions:
        for part in parts:
            part.begin_step(replace(mine.initial_state, version=version), Epoch(number, peers, line=line))
            part.wait()


def test_the_newest_window_is_one_whose_slots_are_all_there_of_one_line(tmp_path: Path) -> None:
    folder = str(tmp_path)
    assert newest_window(folder, 9) == ""
    saved(tmp_path, range(5))
    assert whole_windows(folder) == {0: 1, 2: 3}
    assert steps(folder) == [0, 1, 2, 3, 4]
    saved(tmp_path, range(5, 6), line=4)  # the other half, after all had restored
    assert newest_window(folder, 9) == path_of(folder, 2)
    saved(tmp_path, range(4, 6), line=4)
    assert newest_window(folder, 9) == path_of(folder, 4)
    assert newest_window(folder, 4) == path_of(folder, 2)  # for a run that ends within the newest
    assert steps(folder) == [2, 3, 4, 5]  # the one that is kept, and the one before it


def test_the_slots_of_a_window_may_be_of_several_generations(tmp_path: Path) -> None:
    saved(tmp_path, range(4, 5), number=1)
    saved(tmp_path, range(5, 6), number=2)
    assert newest_window(str(tmp_path), 9) == path_of(str(tmp_path), 4)


def test_a_slot_of_a_whole_window_is_not_replaced(tmp_path: Path) -> None:
    """A worker that is restored may be loading it while others finish the same step in a later generation."""
    saved(tmp_path, range(2))
    before = {path: path.stat().st_ino for path in tmp_path.rglob("*")}
    saved(tmp_path, range(1, 2), number=2)
    saved(tmp_path, range(1, 2), number=3, line=3)
    assert {path: path.stat().st_ino for path in tmp_path.rglob("*")} == before


def test_a_late_slot_leaves_what_a_newer_generation_has_begun(tmp_path: Path) -> None:
    mine, peers = engine(1), (Worker(1, 0), Worker(1, 1))
    newer, older = (sparse(tmp_path, mine, 2) for _ in range(2))
    for saver, version, number in ((newer, 0, 3), (newer, 0, 1)):
        saver.begin_step(replace(mine.initial_state, version=version), Epoch(number, peers))
        saver.wait()
    older.begin_step(replace(mine.initial_state, version=1), Epoch(2, peers[:1]))
    older.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000000.part-3", "step-00000001"]


def test_a_damaged_window_is_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine, board, peers = engine(1), Board(Values()), (Worker(1, 0),)
    saver = SparseCheckpoints(str(tmp_path), peers[0], mine.layout, board, engine=mine, window=2, stages=3, keep=2)
    for version in range(4):
        saver.begin_step(replace(mine.initial_state, version=version), Epoch(1, peers))
    saver.wait()
    file = tmp_path / "step-00000003" / "stage-1-0.safetensors"
    file.write_bytes(file.read_bytes()[:-4] + b"\1\2\3\4")
    assert newest_window(str(tmp_path), 9) == path_of(str(tmp_path), 2)
    assert newest_window(str(tmp_path), 9, thorough=True) == path_of(str(tmp_path), 0)
    assert "step-00000003 is damaged" in capsys.readouterr().err


def test_a_window_of_another_model_is_told(tmp_path: Path) -> None:
    saved(tmp_path, range(2))
    for other in (engine(0), engine(1, dtype=torch.float64)):
        with pytest.raises(CedarError, match="does not fit this model"):
            sparse(tmp_path, other, 2).load(path_of(str(tmp_path), 0))


def test_another_cut_of_the_model_loads_a_window(tmp_path: Path) -> None:
    """Both stages have the table of tokens; the first one writes it."""
    board, members = Board(Values()), tuple(grid(2, 1))
    engines = [tied(stage, 2) for stage in range(2)]
    for version in range(3):
        for worker, mine in zip(members, engines, strict=True):
            saver = SparseCheckpoints(
                str(tmp_path), worker, mine.layout, board, engine=mine, window=3, stages=2,
                shared_elsewhere=worker.stage > 0,
            )  # fmt: skip
            values = [mine.initial_state.master + version, mine.initial_state.master * 2, mine.initial_state.master * 3]
            saver.begin_step(State(version, version, *values), Epoch(1, members))
            saver.wait()
    whole = tied(0, 1)
    saver = SparseCheckpoints(
        str(tmp_path), members[0], whole.layout, board, engine=whole, window=0, stages=1
    )  # fmt: skip
    state = saver.load(newest_window(str(tmp_path), 9))
    expected = whole.initial_state.master
    while state.whole_at:
        after = State(state.version + 1, state.version + 1, state.master + 1, state.first, state.second)
        state = saver.thaw(after, state.whole_at)
    assert (state.version, state.updates) == (2, 2)
    assert torch.allclose(state.master, expected + 2, atol=1e-5)
    assert torch.equal(state.first, expected * 2)
    assert torch.equal(state.second, expected * 3)


# ---- a grid in threads -----------------------------------------------------------------------------------------------

JOB = job(stages=3, tied=(), steps=STEPS, replay=True)


@pytest.fixture
def _mixtures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy_grid, "engine", engine)
    monkeypatch.setattr(toy_grid, "Tokens", lambda: MicroBatches(Source(batch), 3, 2, 12))


@cache
def whole() -> dict[Worker, str]:
    return Crew(JOB, clip=0.3).run()


def crew(folder: Path, mode: str, window: int = 3, **more: Any) -> Crew:
    return Crew(replace(JOB, mode=mode), clip=0.3, folder=str(folder), window=window, **more)


def check(run: Crew, restored: str) -> None:
    found = run.run()
    assert found == {worker: whole()[worker] for worker in found}
    assert restored in run.restores[1:]


def lost(stage: int, step: int) -> dict[Worker, tuple[int, int]]:
    return {Worker(stage, 0): (step, 2), Worker(stage, 1): (step, 7)}


@pytest.mark.heavy
@pytest.mark.usefixtures("_mixtures")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("stage", "step", "window"), [(0, 7, 3), (1, 8, 3), (2, 6, 2), (1, 2, 3), (1, 8, 1)])
def test_a_lost_stage_replays_alone_from_the_newest_window(
    tmp_path: Path, mode: str, stage: int, step: int, window: int
) -> None:
    run = crew(tmp_path, mode, window, kills=lost(stage, step))
    begun: list[State] = []
    loads = SparseCheckpoints.load

    def load(saver: SparseCheckpoints, path: str) -> State:
        begun.append(loads(saver, path))
        return begun[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SparseCheckpoints, "load", load)
        check(run, "replay")
    assert set(run.restores[1:]) == {"replay"}
    for state in begun:
        assert state.version % window == 0
        assert step - 2 * window - 1 <= state.version <= step - window + 1
    assert bool(begun) == (step > window)


@pytest.mark.heavy
@pytest.mark.usefixtures("_mixtures")
@pytest.mark.parametrize("mode", MODES)
def test_logs_are_kept_from_the_newest_window_on(tmp_path: Path, mode: str) -> None:
    run = crew(tmp_path, mode, 2)
    run.run()
    for trainer in run.trainers.values():
        assert min(trainer.history.steps) >= 4


@pytest.mark.heavy
@pytest.mark.usefixtures("_mixtures")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("step", [7, 8])
def test_where_two_neighbors_are_lost_all_go_back_to_the_window(tmp_path: Path, mode: str, step: int) -> None:
    check(crew(tmp_path, mode, kills=lost(0, step) | lost(1, step)), "restore")


@pytest.mark.heavy
@pytest.mark.usefixtures("_mixtures")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("before", [3, 2])
def test_a_death_while_all_thaw_changes_no_bit(tmp_path: Path, mode: str, before: int) -> None:
    """Also who joins then gets a state from a peer that is not whole yet."""
    run = crew(tmp_path, mode, 4, kills=lost(0, 8) | lost(1, 8))
    fired: list[int] = []

    def watch(worker: Worker, step: int, at: int, _: Any) -> None:
        whole_at = run.trainers[worker].state.whole_at  # 0 before the restore
        if whole_at and worker == Worker(1, 1) and not fired and (step, at) >= (whole_at - before, 3):
            fired.append(whole_at)
            run.rejoin = True
            raise Killed

    run.watch = watch
    check(run, "restore")
    assert fired in ([7], [3])  # 3: the window of steps 4 to 7 was not complete in all workers


# ---- processes -------------------------------------------------------------------------------------------------------

KILLS = cases(4)  # CEDAR_CASES=100 for as many


def pipeline(folder: Path, **more: Any) -> ResilientPipeline:
    how = {"steps": 10 + KILLS * 4, "sparse_window": 3, "save_every": 0, "heartbeat": 30.0, "keep": 1} | more
    mode = how.pop("mode", "sync")
    return ResilientPipeline(
        modules(), functional.cross_entropy, batch, Workers(2), batch=12,
        optimizer=AdamWOptions(rate=1e-2, schedule="constant", clip=0.3 if mode == "sync" else 0.0),
        pipeline=PipelineOptions(micro_batches=3, mode=mode), run=RunOptions(folder=str(folder), **how),
    )  # fmt: skip


def ends(record: Any) -> dict[str, str]:
    return {worker[1]: told["digest"] for worker, told in record.ended.items()}


def losses(record: Any) -> dict[int, float]:
    return {step: loss for step, _, loss in record.steps}


PROCESSES = [
    pytest.mark.heavy,
    pytest.mark.waits,
    pytest.mark.timeout(60 + 20 * KILLS),
    pytest.mark.skipif(sys.platform != "linux", reason="workers are forked, and die with their supervisor on Linux"),
]


def processes(test: Any) -> Any:
    for mark in PROCESSES:
        test = mark(test)
    return test


@processes
@pytest.mark.parametrize("mode", MODES)
def test_workers_and_whole_stages_die_at_random_steps_and_no_bit_changes(tmp_path: Path, mode: str) -> None:
    """A stage, another one, one worker, two neighbors; then all places are filled again."""
    draw, chaos = random.Random(KILLS), []
    for at in range(KILLS):
        stage, step = draw.randrange(3), 7 + 4 * at + draw.randrange(2)
        workers = [2 * stage + draw.randrange(2)] if at % 4 == 2 else [2 * stage, 2 * stage + 1]
        for worker in [0, 1, 2, 3] if at % 4 == 3 else workers:
            chaos.append(f"kill={worker}@step{step}:{draw.randrange(8)}")
        chaos.append(f"rejoin@step{step + 1}")
    expected = pipeline(tmp_path / "whole", mode=mode, sparse_window=0).train(quiet=True)
    found = pipeline(tmp_path / "killed", mode=mode).train(quiet=True, chaos=", ".join(chaos))
    if mode == "sync":  # staggered, a step is told of once one worker has taken it, maybe without the others' losses
        assert losses(found) == losses(expected)
    assert ends(found) == ends(expected)
    assert [event.what for event in found.events].count("replay") >= KILLS // 2
    assert {Path(event.why).parent.name for event in found.events if event.what == "replay"} == {"windows"}


@processes
def test_a_run_resumes_from_its_windows(tmp_path: Path) -> None:
    expected = pipeline(tmp_path / "whole", steps=12).train(quiet=True)
    begun = pipeline(tmp_path / "begun", steps=9)
    begun.train(quiet=True)
    for path in (tmp_path / "begun" / "checkpoints").iterdir():
        path.rename(tmp_path / path.name)  # as if it had been cut off before the end
    found = replace(begun, run=replace(begun.run, steps=12, sparse_window=2)).train(quiet=True, resume=True)
    assert [step for step, _, _ in found.steps] == list(range(6, 12))
    assert losses(found).items() <= losses(expected).items()
    assert ends(found) == ends(expected)


@processes
def test_auto_measures_how_long_a_window_must_be(tmp_path: Path) -> None:
    expected = pipeline(tmp_path / "whole", steps=30, sparse_window=0).train(quiet=True)
    found = pipeline(tmp_path / "auto", steps=30, sparse_window="auto").train(
        quiet=True, chaos="kill=2@step26:3, kill=3@step26:5"
    )
    assert ends(found) == ends(expected)
    whole = whole_windows(str(tmp_path / "auto" / "windows"))
    assert whole
    most = max(len(find_operators(engine(stage))) for stage in range(3))
    assert all(1 <= last - start + 1 <= most for start, last in whole.items())
