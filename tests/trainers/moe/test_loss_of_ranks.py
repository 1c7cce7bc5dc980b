"""A rank that is killed in the middle of a step: the others say so, and fewer ranks continue, every token once."""

import os
import random
import signal

import pytest
import torch

from cedar.core.errors import CedarError
from cedar.trainers.common.checkpoint import Checkpoints
from cedar.trainers.common.group import Group
from cedar.trainers.moe.trainer import Trainer
from tests.toy_crew import Crew
from tests.trainers.moe.toy_text import options, write_text

STEPS = 12


def watched(trainer):
    """The trainer's batches, as they come."""
    seen = []
    take = type(trainer.batches).__next__

    class Watched(type(trainer.batches)):
        def __next__(self):
            seen.append(take(self))
            return seen[-1]

    trainer.batches.__class__ = Watched
    return seen


def trained_records(group, options, steps):
    """What each of some steps tells."""
    trainer = Trainer(options, group)
    records = [trainer.train_step() for _ in range(steps)]
    trainer.close()
    return records


def trained(group, options, folder, victim=-1, at=-1, steps=STEPS):
    """Losses and batches from the newest checkpoint on; the victim dies between forward and optimizer of a step."""
    trainer = Trainer(options, group)
    files = Checkpoints(folder, trainer)
    files.resume()
    first, seen, losses = trainer.step, watched(trainer), []
    try:
        while trainer.step < steps:
            if trainer.step == at and group.rank == victim:
                trainer.optimizer.update = lambda _: os.kill(os.getpid(), signal.SIGKILL)
            losses.append(trainer.train_step().loss)
            if trainer.step % 2 == 0:
                files.save()
    except CedarError as error:
        return first, losses, seen, str(error)
    finally:
        trainer.close()
    return first, losses, seen, None


@pytest.mark.heavy
def test_fewer_ranks_go_on_after_a_rank_was_killed_and_every_token_is_trained_on_once(tmp_path):
    text = write_text(tmp_path / "text.txt", lines=60)
    at = random.Random(os.urandom(4)).randint(3, STEPS - 2)
    chosen = options(text, slots=3, data={"batch": 7})
    crew = Crew(4, tmp_path)
    try:
        answers = crew.run(trained, chosen, str(tmp_path / "run"), 2, at, lost={2})
    finally:
        crew.stop()
    assert answers[2] is None
    for rank in (0, 1, 3):
        first, losses, _, said = answers[rank]
        assert first == 0
        assert len(losses) == at
        assert said.startswith(f"rank {rank} of 4 lost the connection to other ranks during ")
        assert "--resume" in said
    (tmp_path / "store").unlink()
    crew = Crew(3, tmp_path)
    try:
        after = crew.run(trained, options(text, slots=4, data={"batch": 7}), str(tmp_path / "run"))
    finally:
        crew.stop()
    whole = trained(Group(), options(text, slots=12, data={"batch": 7}), str(tmp_path / "whole"))
    saved = at // 2 * 2
    for first, losses, seen, said in after:
        assert said is None
        assert first == saved
        assert all(torch.equal(a, b) for a, b in zip(answers[0][2][:saved] + seen, whole[2], strict=True))
        assert all(abs(a - b) < 1e-10 for a, b in zip(answers[0][1][:saved] + losses, whole[1], strict=True))
