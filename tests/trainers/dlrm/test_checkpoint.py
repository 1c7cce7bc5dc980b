"""Checkpoints: bit for bit on as many ranks, the same training on others, whole or not there, refused where they do not
fit."""

import os
from pathlib import Path

import pytest
import torch

from cedar.core.errors import CedarError
from cedar.trainers.common.checkpoint import INDEX, Checkpoints, newest
from cedar.trainers.common.group import Group
from cedar.trainers.dlrm.trainer import VOCABULARIES, Trainer
from tests.trainers.dlrm.toy_clicks import ITEMS, changed, options

DROPS = {"model": {"dropout": 0.2, "repeat_dropout": True}}


def digest(trainer):
    """All that a step may change."""
    tensors = {name: value.clone() for name, value in trainer.tables.state().items()}
    for name, parameter in trainer.model.named_parameters():
        tensors[name] = parameter.detach().clone()
        tensors |= {f"{name} {key}": value.clone() for key, value in trainer.optimizer.state[parameter].items()}
    return trainer.step, tensors


def same(one, other):
    return (
        one[0] == other[0]
        and one[1].keys() == other[1].keys()
        and all(torch.equal(v, other[1][k]) for k, v in one[1].items())
    )


def stopped_and_resumed(group, chosen, folder, saves, steps):
    """Whether a run that was saved after some step and loaded again ends as the one that continued."""
    trainer = Trainer(chosen, group)
    files = Checkpoints(folder, trainer, keep=9)
    for _ in range(steps):
        trainer.train_step()
        if trainer.step in saves:
            files.save()
    whole = digest(trainer)
    trainer.close()
    equal = []
    for step in saves:
        again = Trainer(chosen, group)
        Checkpoints(folder, again).load(os.path.join(folder, f"step-{step:08d}"))
        while again.step < steps:
            again.train_step()
        equal.append(same(whole, digest(again)))
        again.close()
    return equal


@pytest.mark.heavy
@pytest.mark.parametrize(
    "more",
    [
        DROPS | {"tables": {"dtype": "float16"}},
        {"tables": {"rule": "adam", "rate": 0.01}, "optimizer": {"rule": "adam", "rate": 0.01}},
        {
            "tables": {"backend": "fbgemm"},
            "run": {"dtype": "bfloat16"},
            "data": {"executor": "threads", "plan": "auto"},
        },
    ],
)
def test_a_resumed_run_is_bitwise_the_one_that_went_on(log, tmp_path, more):
    if more.get("tables", {}).get("backend") == "fbgemm":
        pytest.importorskip("fbgemm_gpu", reason="fbgemm is not installed")
    saves = (3, 14)  # an epoch has 14 steps
    assert stopped_and_resumed(Group(), options(log, **more), str(tmp_path), saves, 17) == [True, True]
    assert sorted(os.listdir(tmp_path)) == [f"step-{step:08d}" for step in saves]


def test_resumed_ranks_are_bitwise_those_that_went_on(crew, log, tmp_path):
    more = DROPS | {"tables": {"dtype": "float16"}}
    found = crew.run(stopped_and_resumed, options(log, **more), str(tmp_path), (3,), 6, ranks=2)
    assert found == [[True]] * 2


def went_on(group, chosen, folder, save, steps):
    """The losses after what is in a folder, if there is something; saves at the end if asked to."""
    trainer = Trainer(chosen, group)
    files = Checkpoints(folder, trainer)
    files.resume()
    losses = [trainer.train_step().loss for _ in range(steps)]
    if save:
        files.save()
    state = {name: value.clone() for name, value in trainer.tables.state().items()}
    trainer.close()
    return losses, state


@pytest.mark.heavy
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_a_checkpoint_of_some_ranks_loads_on_others(crew, log, tmp_path, before, after):
    chosen = options(log, run={"dtype": "float64"})
    run = lambda ranks, folder, save, steps: (
        [went_on(Group(), chosen, folder, save, steps)]
        if ranks == 1
        else crew.run(went_on, chosen, folder, save, steps, ranks=ranks)
    )
    whole, state = went_on(Group(), chosen, str(tmp_path / "none"), False, 16)
    first = run(before, str(tmp_path / "some"), True, 5)
    second = run(after, str(tmp_path / "some"), False, 11)
    losses = first[0][0] + second[0][0]
    assert max(abs(a - b) for a, b in zip(losses, whole, strict=True)) < 1e-10
    for _, own in second:
        assert all(float((value - state[name]).abs().max()) < 1e-10 for name, value in own.items())


def test_old_checkpoints_go_and_halves_are_not_seen(log, tmp_path):
    trainer = Trainer(options(log), Group())
    files = Checkpoints(str(tmp_path), trainer, keep=2)
    assert newest(files.folder) == ""
    for step in (1, 2, 3):
        trainer.step = step
        files.save()
    (tmp_path / "step-00000009.part").mkdir()  # as a run leaves it that is killed while it saves
    assert newest(files.folder) == str(tmp_path / "step-00000003")
    assert sorted(os.listdir(tmp_path)) == ["step-00000002", "step-00000003", "step-00000009.part"]
    assert str(log) not in (tmp_path / "step-00000003" / INDEX).read_text()  # a URL may hold a password
    trainer.close()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda o: changed(o, "run", seed=1), "seed was 0 and is now 1"),
        (lambda o: changed(o, "tables", rule="sgd"), "table state rule was 'rowwise_adagrad' and is now 'sgd'"),
        (lambda o: changed(o, "model", width=4), f"tables item was [{ITEMS}, 8] and is now [{ITEMS}, 4]"),
        (lambda o: changed(o, "optimizer", rule="adam"), "optimizer was 'adagrad' and is now 'adam'"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_loaded(log, tmp_path, change, told):
    chosen = options(log)
    trainer = Trainer(chosen, Group())
    path = Checkpoints(str(tmp_path), trainer).save()
    trainer.close()
    other = Trainer(change(chosen), Group())
    before = digest(other)
    with pytest.raises(CedarError) as failed:
        Checkpoints(str(tmp_path), other).load(path)
    assert told in str(failed.value)
    assert same(before, digest(other))
    other.close()


def test_vocabularies_travel_with_a_checkpoint_and_others_are_refused(log, tmp_path):
    vocabulary = tmp_path / "items.json"
    vocabulary.write_text('{"a": 1}')
    chosen = options(log, data={"vocabularies": [str(vocabulary)]})
    trainer = Trainer(chosen, Group())
    path = Checkpoints(str(tmp_path / "saved"), trainer).save()
    trainer.close()
    assert Path(path, VOCABULARIES, "0-items.json").read_text() == '{"a": 1}'
    vocabulary.write_text('{"a": 2}')
    other = Trainer(chosen, Group())
    with pytest.raises(CedarError, match=r"vocabularies 0-items\.json"):
        Checkpoints(str(tmp_path / "saved"), other).load(path)
    other.close()
    with pytest.raises(CedarError, match="cannot be read"):
        Trainer(options(log, data={"vocabularies": [str(tmp_path / "none")]}), Group())
