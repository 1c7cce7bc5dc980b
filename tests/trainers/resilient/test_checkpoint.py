"""Checkpoints by the names of parameters: any number of stages and replicas."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cedar.core.errors import CedarError
from cedar.trainers.common.checkpoint import newest, read_index, step_of
from cedar.trainers.resilient.checkpoint import Checkpoints
from cedar.trainers.resilient.control.board import Board, Epoch
from cedar.trainers.resilient.control.store import Values
from cedar.trainers.resilient.model import Engine, Stage, State, token_loss
from cedar.trainers.resilient.schedule import Worker, grid
from tests.trainers.resilient.toy_grid import MODEL, engine

ALL = tuple(grid(2, 2))


def saved(folder: Path, version: int = 10, members: tuple[Worker, ...] = ALL) -> dict[int, State]:
    """A checkpoint by a grid of 2 x 2, every worker with a part in it."""
    board = Board(Values())
    states = {}
    for worker in members:
        mine = engine(worker.stage)
        size = mine.layout.size
        values = [torch.arange(size) * factor + worker.stage for factor in (1.0, 2.0, 3.0)]
        values[0][: mine.layout.tied] = values[1][: mine.layout.tied] = values[2][: mine.layout.tied] = 7.0
        states[worker.stage] = State(version, version - 1, *values)
        part = Checkpoints(str(folder), worker, mine.layout, board, keep=2, about={"loader": {"seed": 1}},
                           shared_elsewhere=worker.stage > 0)  # fmt: skip
        part.save(states[worker.stage], Epoch(1, members))
        part.wait()
    return states


def loaded(folder: Path, stage: int, stages: int, seed: int = 1) -> State:
    mine = Engine(Stage(MODEL, stage, stages), stage, stages, token_loss, tied={"tokens.weight": "tokens.weight"})
    board = Board(Values())
    part = Checkpoints(str(folder), Worker(stage, 0), mine.layout, board, about={"loader": {"seed": seed}})
    return part.load(newest(str(folder)))


def test_a_checkpoint_loads_into_as_many_stages_or_others(tmp_path: Path) -> None:
    states = saved(tmp_path)
    for stage in range(2):
        again = loaded(tmp_path, stage, 2)
        assert (again.version, again.updates) == (10, 9)
        assert torch.equal(again.master, states[stage].master)
        assert torch.equal(again.second, states[stage].second)
    whole = loaded(tmp_path, 0, 1)
    pieces = Engine(Stage(MODEL, 0, 1), 0, 1, token_loss).layout.pieces(whole.first)
    for stage in range(2):
        for name, piece in engine(stage).layout.pieces(states[stage].first).items():
            assert torch.equal(pieces[name], piece)


def test_peers_share_out_a_stage_and_old_checkpoints_go(tmp_path: Path) -> None:
    for version in (10, 20, 30):
        saved(tmp_path, version, ALL[:3])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000020", "step-00000030"]
    told = read_index(str(tmp_path / "step-00000030"))
    files = {piece.file for entry in told.entries.values() for piece in entry.pieces}
    assert sorted(files) == [f"stage-{name}.safetensors" for name in ("0-0", "0-1", "1-0")]
    assert step_of(newest(str(tmp_path))) == 30


def test_half_a_checkpoint_is_none(tmp_path: Path) -> None:
    board = Board(Values())
    mine = engine(0)
    part = Checkpoints(str(tmp_path), Worker(0, 0), mine.layout, board)
    part.save(mine.initial_state, Epoch(3, ALL))
    part.wait()
    assert newest(str(tmp_path)) == ""


def test_a_checkpoint_of_another_model_or_other_data_is_told(tmp_path: Path) -> None:
    saved(tmp_path)
    with pytest.raises(CedarError, match="different data: seed"):
        loaded(tmp_path, 0, 2, seed=2)
    path = Path(newest(str(tmp_path)))
    (path / "stage-0-0.safetensors").write_bytes(b"no")
    with pytest.raises(CedarError, match="step-00000010 is damaged: .* in stage-0-0.safetensors cannot be read"):
        loaded(tmp_path, 0, 2)
