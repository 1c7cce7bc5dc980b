"""Checkpoints: bit for bit on as many ranks, every token once on others, whole or not there, and refused where they do
not fit."""

import os
import shutil
from pathlib import Path

import pytest
import torch

from cedar.core.errors import CedarError, ResumeError
from cedar.trainers.common.checkpoint import INDEX, Checkpoints, newest
from cedar.trainers.common.files import read_sealed, write_sealed
from cedar.trainers.common.group import Group
from cedar.trainers.moe.trainer import Trainer
from tests.trainers.moe.toy_text import options, write_text

MORE = {
    "model": {"dropout": 0.1},
    "experts": {"bias_rate": 0.01, "policy": "ema", "decay": 0.5},
    "run": {"dtype": "bfloat16"},
}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Nine batches an epoch, so that runs of twelve steps cross its end."""
    return write_text(tmp_path_factory.mktemp("text") / "text.txt", lines=42)


def digest(trainer):
    """All that a step may change."""
    return [
        [part.tensor.clone() for part in trainer.optimizer.saved().values()],
        [(layer.basis, layer.placement.digest, layer.router.bias.tolist()) for layer in trainer.layers],
        trainer.step,
    ]


def same(a, b):
    return a[1:] == b[1:] and all(torch.equal(x, y) for x, y in zip(a[0], b[0], strict=True))


def stopped_and_resumed(group, options, folder, save_at, steps, beside):
    """Whether a run that was saved after some step and loaded again ends as the one that continued."""
    trainer = Trainer(options, group)
    files = Checkpoints(folder, trainer, keep=9, beside=beside)
    for _ in range(steps):
        trainer.train_step()
        if trainer.step in save_at:
            files.save()
    files.wait()
    whole = digest(trainer)
    trainer.close()
    equal = []
    for step in save_at:
        again = Trainer(options, group)
        Checkpoints(folder, again).load(os.path.join(folder, f"step-{step:08d}"))
        while again.step < steps:
            again.train_step()
        equal.append(same(whole, digest(again)))
        again.close()
    return equal


@pytest.mark.heavy
def test_a_resumed_run_is_bitwise_the_one_that_went_on(text, tmp_path):
    saves = (1, 8, 9, 10)  # one of them at the end of an epoch
    chosen = options(text, slots=8, **MORE)
    assert stopped_and_resumed(Group(), chosen, str(tmp_path), saves, 12, False) == [True] * 4
    assert sorted(os.listdir(tmp_path)) == [f"step-{step:08d}" for step in saves]


@pytest.mark.parametrize("beside", [False, True])
def test_resumed_ranks_are_bitwise_those_that_went_on(crew, text, tmp_path, beside):
    found = crew.run(stopped_and_resumed, options(text, **MORE), str(tmp_path), (4, 9), 11, beside, ranks=2)
    assert found == [[True, True]] * 2


def saved(group, options, folder, steps, more):
    trainer = Trainer(options, group)
    for _ in range(steps):
        trainer.train_step()
    files = Checkpoints(folder, trainer)
    files.save()
    records = [trainer.train_step() for _ in range(more)]
    trainer.close()
    return records


def resumed(group, options, folder, more):
    trainer = Trainer(options, group)
    files = Checkpoints(folder, trainer)
    assert files.resume()
    records = [trainer.train_step() for _ in range(more)]
    trainer.close()
    return records


@pytest.mark.parametrize(("first", "ranks"), [(4, 1), (4, 3), (1, 3), (2, 4)])
def test_other_numbers_of_ranks_go_on_with_the_same_training(crew, text, tmp_path, first, ranks):
    """Twelve slots in all cases, so that placements and drops are the same; every token once, on the same batches."""
    before = crew.run(saved, options(text, slots=12 // first), str(tmp_path), 4, 6, ranks=first)[0]
    after = crew.run(resumed, options(text, slots=12 // ranks), str(tmp_path), 6, ranks=ranks)
    for records in after:
        for one, other in zip(before, records, strict=True):
            assert one.step == other.step
            assert [layer.counts for layer in one.layers] == [layer.counts for layer in other.layers]
            assert [layer.replicas for layer in one.layers] == [layer.replicas for layer in other.layers]
            assert abs(one.loss - other.loss) < 1e-10


def test_too_few_slots_after_a_loss_of_ranks_are_refused(crew, text, tmp_path):
    crew.run(saved, options(text, slots=2), str(tmp_path), 1, 0)
    for said in crew.run(refused, options(text, slots=2), str(tmp_path), ranks=2):
        assert said.startswith("5 experts do not fit into 4 slots: each needs at least one")


def refused(group, options, folder):
    try:
        resumed(group, options, folder, 0)
    except CedarError as error:
        return str(error)


@pytest.fixture
def checkpoint(text, tmp_path):
    """A folder with one checkpoint of a single rank."""
    saved(Group(), options(text, slots=8), str(tmp_path / "run"), 2, 0)
    return tmp_path / "run"


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": {"width": 16, "heads": 4}}, "model.width was 8 and is now 16; model.heads was 2 and is now 4"),
        ({"experts": {"experts": 6}}, "experts.experts was 5 and is now 6"),
        ({"model": {"layers": 3}}, "model.layers was 2 and is now 3"),
        ({"data": {"batch": 5}}, "data.batch was 6 and is now 5"),
        ({"run": {"seed": 3}}, "run.seed was 0 and is now 3"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(text, checkpoint, changes, said):
    with pytest.raises(CedarError) as error:
        resumed(Group(), options(text, slots=8, **changes), str(checkpoint), 0)
    assert said in str(error.value)
    assert "nothing was loaded" in str(error.value)


def test_a_checkpoint_that_is_refused_changes_nothing(text, checkpoint):
    trainer = Trainer(options(text, slots=8, run={"seed": 3}))
    before = [part.shards.master.clone() for part in trainer.optimizer.parts]
    with pytest.raises(CedarError, match="run.seed was 0 and is now 3"):
        Checkpoints(str(checkpoint), trainer).resume()
    assert all(torch.equal(a, part.shards.master) for a, part in zip(before, trainer.optimizer.parts, strict=True))
    trainer.close()


def test_a_checkpoint_of_other_data_is_refused_and_changes_nothing(checkpoint, tmp_path):
    trainer = Trainer(options(write_text(tmp_path / "other.txt", lines=60, seed=9), slots=8))
    before = digest(trainer)
    with pytest.raises(ResumeError, match="the data of read_text.* changed"):
        Checkpoints(str(checkpoint), trainer).load(str(checkpoint / "step-00000002"))
    assert same(before, digest(trainer))
    trainer.close()


def test_a_checkpoint_does_not_say_where_the_data_is(text, checkpoint):
    """A URL may hold a password."""
    assert Path(text).name not in (checkpoint / "step-00000002" / INDEX).read_text()


def test_a_placement_that_does_not_follow_from_its_counts_is_refused(text, checkpoint):
    path = str(checkpoint / "step-00000002" / INDEX)
    found = read_sealed(path)
    found["state"]["layers"]["block1"]["basis"] = [500, 1, 1, 1, 1]
    write_sealed(path, found)
    with pytest.raises(CedarError, match="the checkpoint's placement of block1 differs"):
        resumed(Group(), options(text, slots=8), str(checkpoint), 0)


def test_a_checkpoint_that_was_not_finished_is_not_there(text, checkpoint):
    shutil.copytree(checkpoint / "step-00000002", checkpoint / "step-00000003.part")
    assert Path(newest(str(checkpoint))).name == "step-00000002"
    assert [record.step for record in resumed(Group(), options(text, slots=8), str(checkpoint), 2)] == [2, 3]


def test_old_checkpoints_go_and_the_newest_stay(text, tmp_path):
    trainer = Trainer(options(text, slots=8))
    files = Checkpoints(str(tmp_path), trainer, keep=2)
    assert newest(files.folder) == ""
    (tmp_path / "step-00000009.part").mkdir()  # as a run leaves it that is killed while it saves
    for _ in range(4):
        trainer.train_step()
        files.save()
    trainer.close()
    assert sorted(os.listdir(tmp_path)) == ["step-00000003", "step-00000004"]


@pytest.mark.parametrize("beside", [False, True])
def test_a_checkpoint_that_cannot_be_written_is_told(text, tmp_path, beside):
    trainer = Trainer(options(text, slots=8))
    files = Checkpoints(str(tmp_path / "run"), trainer, beside=beside)
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "run").write_text("in the way")
    with pytest.raises(CedarError, match="a checkpoint could not be written into .*run"):
        files.save()
        files.wait()
    with pytest.raises(ZeroDivisionError), files:  # what ended the run is not hidden
        files.save() if beside else None
        raise ZeroDivisionError
    trainer.close()
