"""Sparse checkpoints: the bytes of each step, and states that are bitwise those of the run that continued."""

import os
import threading

import pytest

from cedar.core.errors import CedarError
from cedar.trainers.common.files import METRICS, read_lines, seal, unseal
from cedar.trainers.common.run import run
from cedar.trainers.common.windows import plan_window, step_bytes
from cedar.trainers.moe import sparse as sparse_module
from cedar.trainers.moe.sparse import SparseCheckpoints
from cedar.trainers.moe.trainer import Trainer
from tests.trainers.moe.test_checkpoint import digest, same
from tests.trainers.moe.test_trainer import spoil
from tests.trainers.moe.toy_text import options, write_text

MORE = {
    "model": {"dropout": 0.1},
    "experts": {"bias_rate": 0.01},
    "optimizer": {"clip": 0.3, "rate": 1e-2},
    "run": {"dtype": "bfloat16"},
}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text") / "text.txt", lines=60)


def test_windows_that_cannot_be_cut_are_refused(text, tmp_path):
    with pytest.raises(ValueError, match="cannot split 2 operators"):
        plan_window([1, 1], 3)
    trainer = Trainer(options(text, slots=8))
    rows = sum(len(part.shards.slices) for part in trainer.optimizer.parts)
    with pytest.raises(CedarError, match=f"set run.sparse_window to 1 to {rows}"):
        SparseCheckpoints(str(tmp_path), trainer, rows + 1)
    trainer.close()


def recovered(group, options, folder, window, steps, poison, stops):
    """Whether a run that is recovered at each of some steps has the bits of the run that continued; what was seen."""
    trainer = Trainer(options, group)
    sparse = SparseCheckpoints(folder, trainer, window, keep=99)
    states, records = [digest(trainer)], []
    for step in range(steps):
        sparse.before_step()
        if step in poison and group.rank == group.size - 1:
            spoil(trainer)
        records.append(trainer.train_step())
        states.append(digest(trainer))
    sparse.close()
    trainer.close()
    equal = []
    for stop in stops:
        again = Trainer(options, group)
        with SparseCheckpoints(folder, again, window, keep=99) as other:
            other.recover(stop)
        equal.append(same(states[stop], digest(again)) and again.step == stop)
        again.close()
    return equal, records, sparse.bytes


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_iteration_of_a_window_is_recovered_bit_for_bit(crew, text, tmp_path, ranks):
    """Clipping, a step skipped inside the window, moving placements, dropout, a moving bias."""
    chosen = options(text, slots=8 // ranks, **MORE)
    stops = range(6, 10)
    found = crew.run(recovered, chosen, str(tmp_path), 3, 9, (4,), stops, ranks=ranks)
    for equal, records, _ in found:
        assert equal == [True] * len(stops)
        assert [record.step for record in records if record.skipped] == [4]
        assert all(record.scale < 1 for record in records[:4] if not record.skipped)
        assert len({layer.replicas for record in records[2:7] for layer in record.layers}) > 2


def test_experts_without_tokens_are_stepped_in_a_replay_as_they_were(crew, text, tmp_path):
    """Tokens go to frozen experts alone in some steps, and AdamW still moves those that have thawed."""
    chosen = options(
        text,
        slots=6,
        data={"batch": 2, "length": 3},
        experts={"experts": 12, "top_k": 1},
        optimizer={"rate": 1e-2},
    )
    stops = (6, 8, 9)
    for equal, _, _ in crew.run(recovered, chosen, str(tmp_path), 3, 9, (), stops, ranks=2):
        assert equal == [True] * len(stops)


@pytest.mark.heavy
@pytest.mark.parametrize("window", [1, 4])
def test_windows_of_any_length_recover_and_save_what_the_formula_says(text, tmp_path, window):
    chosen = options(text, slots=8, **MORE)
    trainer = Trainer(chosen)
    sparse = SparseCheckpoints(str(tmp_path), trainer, window)
    for _ in range(2 * window + 1):
        sparse.before_step()
        trainer.train_step()
    sparse.close()
    sizes = [160] * 10 + [len(part) for part in trainer.optimizer.parts[0].shards.slices]
    runs = plan_window(sizes, window)
    assert sparse.bytes[:window] == sparse.bytes[window : 2 * window]
    assert sparse.bytes[:window] == [step_bytes(sizes, runs, at) for at in range(window)]
    again = Trainer(chosen)
    after = SparseCheckpoints(str(tmp_path), again, window)
    assert after.end() == trainer.step
    after.recover()
    assert same(digest(trainer), digest(again))
    for _ in range(window):  # and continues saving
        after.before_step()
        again.train_step()
    after.close()
    assert after.end() == trainer.step + window
    for closing in (trainer, again):
        closing.close()


def test_only_the_windows_that_are_needed_stay(text, tmp_path):
    trainer = Trainer(options(text, slots=8))
    with SparseCheckpoints(str(tmp_path), trainer, 2) as sparse:
        for _ in range(9):
            sparse.before_step()
            sparse.wait()
            trainer.train_step()
    trainer.close()
    assert sorted(os.listdir(tmp_path)) == ["log.jsonl", "window-00000006.1x2", "window-00000008.1x2"]
    lines = (tmp_path / "log.jsonl").read_bytes().splitlines()
    assert [unseal(line, "log.jsonl")["step"] for line in lines] == [6, 7, 8]


def test_without_a_whole_window_nothing_is_recovered(text, tmp_path):
    trainer = Trainer(options(text, slots=8))
    with SparseCheckpoints(str(tmp_path), trainer, 4) as sparse:
        assert sparse.end() is None
        for _ in range(3):
            sparse.before_step()
            trainer.train_step()
        assert sparse.end() is None
        with pytest.raises(CedarError, match="holds no window of 4 steps by 1 ranks before step 2"):  # logged
            sparse.recover()
    trainer.close()


def test_windows_of_other_ranks_and_of_steps_that_are_run_anew_are_not_taken(text, tmp_path):
    """An earlier run went further: what it saved of steps to come goes, and its log of them."""
    trainer = Trainer(options(text, slots=8))
    with SparseCheckpoints(str(tmp_path), trainer, 2) as sparse:
        for _ in range(6):
            sparse.before_step()
            trainer.train_step()
    trainer.close()
    (tmp_path / "window-00000004.2x2").mkdir()
    for name in os.listdir(tmp_path / "window-00000004.1x2"):
        (tmp_path / "window-00000004.2x2" / name).write_bytes(b"of another group")
    again = Trainer(options(text, slots=8, optimizer={"rate": 1e-2}))
    with SparseCheckpoints(str(tmp_path), again, 2) as sparse:
        for _ in range(2):
            sparse.before_step()
            again.train_step()
    assert sorted(os.listdir(tmp_path)) == ["log.jsonl", "window-00000000.1x2"]
    with SparseCheckpoints(str(tmp_path), again, 2) as sparse:
        assert sparse.end() == 2
        whole = digest(again)
        sparse.recover()
    assert same(whole, digest(again))
    again.close()


def test_a_replay_that_sees_other_tokens_is_stopped(text, tmp_path):
    chosen = options(text, slots=8)
    trainer = Trainer(chosen)
    with SparseCheckpoints(str(tmp_path), trainer, 2) as sparse:
        for _ in range(3):
            sparse.before_step()
            trainer.train_step()
    trainer.close()
    path = tmp_path / "log.jsonl"
    lines = [unseal(line, "log.jsonl") for line in path.read_bytes().splitlines()]
    lines[1]["counts"][0][0] += 1
    path.write_bytes(b"".join(map(seal, lines)))
    again = Trainer(chosen)
    with SparseCheckpoints(str(tmp_path), again, 2) as sparse, pytest.raises(CedarError) as error:
        sparse.recover()
    again.close()
    assert "step 1 routes tokens to other experts than in the original run" in str(error.value)


def test_steps_that_were_not_logged_are_not_skipped(text, tmp_path):
    """A window, then steps without sparse checkpoints, then a step of a window that was cut short."""
    trainer = Trainer(options(text, slots=8))
    for steps, saving in ((2, True), (2, False), (1, True)):
        with SparseCheckpoints(str(tmp_path), trainer, 2) as sparse:
            trainer.log = trainer.log if saving else None
            for _ in range(steps):
                sparse.before_step() if saving else None
                trainer.train_step()
    with SparseCheckpoints(str(tmp_path), trainer, 2) as sparse:
        assert sparse.end() is None
        with pytest.raises(CedarError, match="holds no window of 2 steps by 1 ranks before step 5"):
            sparse.recover()
    trainer.close()


def test_a_replay_takes_the_settings_that_were_saved(text, tmp_path):
    trainer = Trainer(options(text, slots=8))
    with SparseCheckpoints(str(tmp_path), trainer, 2) as sparse:
        for _ in range(2):
            sparse.before_step()
            trainer.train_step()
    whole = digest(trainer)
    trainer.close()
    again = Trainer(options(text, slots=8, optimizer={"decay": 0.2, "betas": (0.8, 0.95)}))
    with SparseCheckpoints(str(tmp_path), again, 2) as sparse, pytest.raises(CedarError) as error:
        sparse.recover()
    again.close()
    told = "optimizer.betas was [0.9, 0.95] and is now [0.8, 0.95]; optimizer.decay was 0.01 and is now 0.2"
    assert told in str(error.value)
    again = Trainer(options(text, slots=8, optimizer={"rate": 1.0, "clip": 9.0}, run={"steps": 99}))  # the log's count
    with SparseCheckpoints(str(tmp_path), again, 2) as sparse:
        sparse.recover()
    assert same(whole, digest(again))
    again.close()


def test_a_slow_disk_does_not_fill_the_memory(text, tmp_path, monkeypatch):
    """Nothing is written before the training waits for it."""
    write, wait, waited = SparseCheckpoints._write, sparse_module.wait, threading.Event()
    monkeypatch.setattr(SparseCheckpoints, "_write", staticmethod(lambda *what: (waited.wait(), write(*what))))
    monkeypatch.setattr(sparse_module, "wait", lambda those: (waited.set() if those else None, wait(those)))
    trainer = Trainer(options(text, slots=8))
    with SparseCheckpoints(str(tmp_path), trainer, 2) as sparse:
        try:
            for _ in range(4):
                sparse.before_step()
                assert sum(not future.done() for future in sparse._writing) <= 2
                trainer.train_step()
        finally:
            waited.set()
    trainer.close()


def test_what_cannot_be_written_is_told(text, tmp_path):
    trainer = Trainer(options(text, slots=8))
    sparse = SparseCheckpoints(str(tmp_path / "run"), trainer, 2)
    (tmp_path / "run" / "window-00000000.1x2").write_text("in the way")
    sparse.before_step()
    with pytest.raises(CedarError, match="a part of a sparse checkpoint could not be written"):
        sparse.close()
    trainer.close()


def test_what_cannot_be_written_at_the_end_of_a_block_is_told(text, tmp_path):
    trainer = Trainer(options(text, slots=8))
    folder = str(tmp_path)
    with pytest.raises(CedarError, match="could not be written"), SparseCheckpoints(folder, trainer, 2) as sparse:
        (tmp_path / "window-00000000.1x2").write_text("in the way")
        sparse.before_step()
    trainer.close()


def test_a_damaged_part_of_a_window_is_told(text, tmp_path):
    trainer = Trainer(options(text, slots=8))
    with SparseCheckpoints(str(tmp_path), trainer, 2) as sparse:
        for _ in range(2):
            sparse.before_step()
            trainer.train_step()
    trainer.close()
    path = tmp_path / "window-00000000.1x2" / "slot-1.rank-0.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    again = Trainer(options(text, slots=8))
    with SparseCheckpoints(str(tmp_path), again, 2) as sparse, pytest.raises(CedarError, match="slot-1.*cannot be"):
        sparse.recover()
    again.close()


# ---- runs that are resumed -------------------------------------------------------------------------------------------


def stopped(text, folder, at, *, resume=False, **more):
    """The losses of a run that fails after it has written the metrics of a step, so that it does not log the step."""
    chosen = options(text, slots=8, run={"folder": str(folder), "sparse_window": 2} | more)
    with pytest.raises(ZeroDivisionError):
        run(Trainer, chosen, resume=resume, quiet=True, on_metrics=lambda line: 1 // (at - line["step"]))
    return [line["loss"] for line in read_lines(str(folder / METRICS))]


def remove(log):
    log.unlink()


def damage(log):
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:-2], lines[-2].replace(b"counts", b"count5"), lines[-1]]))


@pytest.mark.parametrize("save_every", [0, 4])
@pytest.mark.parametrize(
    ("window", "spoil_log", "why"),
    [
        (3, None, "they were saved by 1 ranks with run.sparse_window = 2"),
        (2, remove, "steps are missing in .*log.jsonl, or damaged"),
        (2, damage, "steps are missing in .*log.jsonl, or damaged"),
    ],
)
def test_windows_that_a_run_cannot_use_are_not_removed(text, tmp_path, save_every, window, spoil_log, why):
    """It went back to the checkpoint, or to step 0, and removed them."""
    stopped(text, tmp_path, 7, save_every=save_every)
    if spoil_log:
        spoil_log(tmp_path / "sparse" / "log.jsonl")
    before = sorted(os.listdir(tmp_path / "sparse"))
    with pytest.raises(CedarError, match=rf"of steps \d to \d in .*sparse cannot be used: {why}") as error:
        stopped(text, tmp_path, 9, resume=True, save_every=save_every, sparse_window=window)
    assert error.value.fix.endswith(f"remove {tmp_path / 'sparse'} to start from step {save_every}")
    assert ("run.sparse_window=2" in error.value.fix) is (window == 3)
    assert sorted(os.listdir(tmp_path / "sparse")) == before


def test_a_run_that_stopped_in_its_first_window_starts_again(text, tmp_path):
    """All parts of the window were saved, but a replay would also need the log of its last step."""
    before = stopped(text, tmp_path, 3, sparse_window=4, save_every=0)
    assert stopped(text, tmp_path, 4, sparse_window=4, save_every=0, resume=True)[:4] == before


@pytest.mark.parametrize("damaged", [(8,), (4, 8)])
def test_a_sparse_checkpoint_that_is_newer_than_the_intact_ones_is_used(text, tmp_path, damaged):
    """The older checkpoint was used, as the damaged one was as new as the sparse one; or the run ended."""
    whole = stopped(text, tmp_path / "whole", 10, save_every=4)
    assert stopped(text, tmp_path / "run", 8, save_every=4) == whole[:9]
    folder = tmp_path / "run" / "checkpoints"
    for step in damaged:
        (folder / f"step-{step:08d}" / "index.json").write_bytes(b"{")
    assert stopped(text, tmp_path / "run", 10, save_every=4, resume=True) == whole
    assert sorted(os.listdir(folder)) == ["step-00000004", "step-00000008.damaged"]


def test_parts_of_a_window_that_the_run_left_are_not_mixed_with_new_ones(text, tmp_path):
    """The window began before the checkpoint from which the run continued, and ended after it."""
    for at, resume in ((3, False), (4, True)):
        stopped(text, tmp_path, at, save_every=2, sparse_window=4, resume=resume)
    assert sorted(os.listdir(tmp_path / "sparse")) == ["log.jsonl", "window-00000002.1x4"]
