"""The whole trainer: the same training on any number of ranks, its bytes, and what bad input ends in."""

import itertools
import math
import os
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from cedar.core.errors import CedarError
from cedar.trainers.common.group import Group
from cedar.trainers.moe.trainer import Trainer
from tests.trainers.moe.toy_reference import exchange_bytes, spread
from tests.trainers.moe.toy_text import options, write_text


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text") / "text.txt")


def trained(group, options, steps, *, poison=()):
    """Records and losses of some steps; a poisoned step has a NaN among the gradients of one rank."""
    trainer = Trainer(options, group)
    try:
        records = []
        for step in range(steps):
            if (step, group.rank) in poison:
                spoil(trainer)
            records.append(trainer.train_step())
        return records, trainer.evaluate(), [part.shards.master.clone() for part in trainer.optimizer.parts]
    finally:
        trainer.close()


def spoil(trainer):
    """Put a NaN into this rank's gradients of the next step."""
    update = trainer.optimizer.update

    def spoiled(logged=None):
        trainer.layers[-1].weights.grad[0, 0] = float("nan")
        trainer.optimizer.update = update
        return update(logged)

    trainer.optimizer.update = spoiled


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_train_as_one_process_does(crew, text, ranks):
    """Ranks of 2 and 1 rows, two micro-batches, dropout, top-2, drops: the numbers are those of one process."""
    more = {"data": {"accumulate": 2, "batch": 9}, "model": {"dropout": 0.1}}
    alone, held_out, _ = trained(Group(), options(text, slots=8, **more), 12)
    for records, ranks_held_out, _ in crew.run(trained, options(text, slots=8 // ranks, **more), 12, ranks=ranks):
        assert abs(ranks_held_out - held_out) < 1e-10
        for one, many in zip(alone, records, strict=True):
            assert abs(one.loss - many.loss) < 1e-10
            assert abs(one.norm - many.norm) < 1e-10
            for ours, theirs in zip(one.layers, many.layers, strict=True):
                assert ours.counts == theirs.counts
                assert ours.survival == theirs.survival
                assert ours.replicas == theirs.replicas
    assert len({layer.replicas for record in alone for layer in record.layers}) > 2
    assert min(record.layers[0].survival for record in alone) < 1
    assert alone[-1].loss < alone[0].loss


def test_a_rank_may_have_no_rows(crew, text):
    few = {"data": {"batch": 3}}
    alone, held_out, _ = trained(Group(), options(text, slots=8, **few), 5)
    for records, ranks_held_out, _ in crew.run(trained, options(text, slots=2, **few), 5, ranks=4):
        assert abs(records[-1].loss - alone[-1].loss) < 1e-10
        assert abs(ranks_held_out - held_out) < 1e-10


def test_bytes_are_those_of_the_formula_under_any_placement_before(crew, text):
    chosen = options(text, slots=2, run={"dtype": "bfloat16"})
    records = crew.run(trained, chosen, 10, ranks=4)[0][0]
    size = 2 * 8 * 10
    for now, then in itertools.pairwise(records):
        for layer, after in zip(now.layers, then.layers, strict=True):
            held = spread(layer.replicas, 4, 2)
            assert layer.sent["gradients"] == exchange_bytes(held, size, 4, 4)
            assert layer.sent["weights"] == exchange_bytes(spread(after.replicas, 4, 2), size, 2, 4)
            assert layer.sent["weights"] <= 4 * 2 * size * 2 * 3 // 4
            assert layer.sent["tokens"] % (8 * 2) == 0
    assert len({layer.replicas for record in records for layer in record.layers}) > 2


def test_the_formula_is_the_sum_over_experts():
    for held, size, ranks in (([1, 3, 2], 12, 4), ([4, 4], 40, 4), ([2, 1, 1, 2], 6, 3)):
        assert exchange_bytes(held, size, 4, ranks) == sum(h * size * 4 * (ranks - 1) // ranks for h in held)


def test_a_nan_on_one_rank_skips_the_step_on_all(crew, text):
    for records, _, _ in crew.run(trained, options(text), 6, ranks=2) + crew.run(poisoned, options(text), ranks=2):
        assert math.isfinite(records[-1].loss)
    seen = crew.run(poisoned, options(text), ranks=2)
    for records, changed, ranks in seen:
        assert [record.skipped for record in records] == [False, False, True, False, False]
        assert changed == [True, True, False, True, True]
        assert ranks == (1,)


def poisoned(group, options):
    """Five steps, a NaN on rank 1 in the third; which steps changed weights, and whose fault a skip was."""
    trainer = Trainer(options, group)
    records, changed, blamed = [], [], []
    trainer.log = lambda logged: blamed.append(logged.outcome.ranks)
    for step in range(5):
        before = [part.shards.master.clone() for part in trainer.optimizer.parts]
        if (step, group.rank) == (2, 1):
            spoil(trainer)
        records.append(trainer.train_step())
        after = [part.shards.master for part in trainer.optimizer.parts]
        changed.append(not all(torch.equal(a, b) for a, b in zip(before, after, strict=True)))
    trainer.close()
    return records, changed, blamed[2]


def test_too_many_skips_end_the_run(text):
    trainer = Trainer(options(text, slots=8, optimizer={"most_skips": 2}))
    with pytest.raises(CedarError) as error:
        for _ in range(5):
            spoil(trainer)
            trainer.train_step()
    trainer.close()
    assert trainer.step == 2
    assert "3 steps in a row had gradients that are not finite, on ranks [0]" in str(error.value)


def test_an_expert_without_tokens_for_100_steps_keeps_a_replica_and_comes_back(text):
    """With a bias against it nothing chooses expert 0; AdamW lets its moments fade, and nothing else happens to it."""
    trainer = Trainer(options(text, slots=8, experts={"top_k": 1}, model={"layers": 1}))
    for layer in trainer.layers:
        layer.router.bias[0] = -100.0
    shards = trainer.optimizer.parts[1].shards
    moment = trainer.optimizer.inner.state[shards.slices[0]]["exp_avg"]
    for _ in range(100):
        record = trainer.train_step()
        assert [layer.counts[0] for layer in record.layers] == [0]
        assert all(min(layer.replicas) >= 1 for layer in record.layers)
    assert torch.equal(moment, torch.zeros_like(moment))
    assert bool(torch.isfinite(shards.master).all())
    for layer in trainer.layers:
        layer.router.bias[0] = 100.0
    assert [layer.counts[0] for layer in trainer.train_step().layers] == [72]
    assert float(moment.abs().max()) > 0
    trainer.close()


def test_fewer_slots_than_experts_are_refused(text):
    with pytest.raises(CedarError, match="5 experts do not fit into 4 slots"):
        Trainer(options(text, slots=4))


def test_no_second_is_counted_in_two_phases(crew, text):
    for nested, seen in crew.run(timed, options(text), ranks=2):
        assert not nested
        assert {"routing block0", "counts block0", "tokens block1", "weights block1"} <= seen


def timed(group, options):
    """The phases that were timed within others, and all of them, of one step."""
    under_way, nested, seen, timing = [], [], set(), group.meter.timing

    @contextmanager
    def watched(phase):
        nested.extend((other, phase) for other in under_way)
        seen.add(phase)
        under_way.append(phase)
        with timing(phase):
            yield
        under_way.remove(phase)

    group.meter.timing = watched
    try:
        trained(group, options, 1)
    finally:
        del group.meter.timing
    return nested, seen


def test_ranks_that_disagree_stop_before_anything_is_sent(crew, text):
    for said in crew.run(disagreeing, options(text), ranks=2):
        assert "ranks [1] have another placement of experts than rank 0" in said


def disagreeing(group, options):
    trainer = Trainer(options, group)
    trainer.train_step()
    if group.rank == 1:
        layer = trainer.layers[1]
        layer.basis = (9, 0, 0, 0, 0) if layer.placement.replicas[0] < 4 else (0, 0, 0, 0, 9)
        layer.placement = layer.place()
    try:
        trainer.train_step()
    except CedarError as error:
        return str(error)
    finally:
        trainer.close()


def test_ranks_with_other_settings_or_data_do_not_begin(crew, text, tmp_path):
    other = write_text(tmp_path / "other.txt", lines=90, seed=3)
    rate = [options(text), options(text, optimizer={"rate": 1e-2, "clip": 0.1})]
    for said in crew.run(refused_of, rate, ranks=2):
        assert "ranks disagree: [1] differ from rank 0 in optimizer.rate, optimizer.clip" in said
    for said in crew.run(refused_of, [options(other), options(text), options(other)], ranks=3):
        assert "ranks disagree: [1] differ from rank 0 in the files of data.paths" in said
    changed = tmp_path / "changed.txt"  # as long as the first file
    changed.write_text(Path(text).read_text()[::-1])
    for said in crew.run(refused_of, [options(text), options(str(changed))], ranks=2):
        assert "ranks disagree: [1] differ from rank 0 in the files of data.paths" in said


def test_each_node_may_have_its_own_copy_of_the_data(crew, text, tmp_path):
    """The ranks compared the times and inodes of the files, too."""
    copy = tmp_path / "text.txt"
    copy.write_bytes(Path(text).read_bytes())
    os.utime(copy, (1, 1))
    assert crew.run(begun_of, [options(text), options(str(copy))], ranks=2) == [0, 0]


def begun_of(group, options):
    trainer = Trainer(options[group.rank], group)
    trainer.close()
    return trainer.step


def refused_of(group, options):
    """What each rank, with options of its own, says to them."""
    return refused(group, options[group.rank])


def test_the_oracle_needs_all_slots_on_one_rank(crew, text):
    chosen = options(text, slots=8, experts={"policy": "oracle", "top_k": 1})
    records, _, _ = trained(Group(), chosen, 8)
    followed, _, _ = trained(Group(), options(text, slots=8, experts={"policy": "symi", "top_k": 1}), 8)
    mean = [sum(layer.survival for r in rs for layer in r.layers) for rs in (records, followed)]
    assert mean[0] > mean[1]
    for said in crew.run(refused, chosen, ranks=2):
        assert "'oracle' places experts after routing, which is impossible on 2 ranks" in said


def refused(group, options):
    try:
        Trainer(options, group)
    except CedarError as error:
        return str(error)
