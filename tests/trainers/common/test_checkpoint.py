"""The format of checkpoints: read by any number of ranks, whole or refused by name, never unpickled."""

import errno
import os
import pickle

import pytest

from benchmarks import tampered_checkpoints as tampered
from cedar.core.errors import CedarError
from cedar.trainers.common import tensors
from cedar.trainers.common.checkpoint import INDEX, Checkpoints, newest
from cedar.trainers.common.files import Damaged, Unreadable
from cedar.trainers.common.group import Group
from tests.trainers.common.toy_checkpoints import WHOLE, Toy, resumed, saved


@pytest.mark.parametrize(("before", "after", "axis"), [(3, 2, 0), (1, 4, 0), (4, 1, 1)])
def test_any_number_of_ranks_reads_what_any_number_wrote(crew, tmp_path, before, after, axis):
    crew.run(saved, str(tmp_path), 0, ranks=before)
    assert crew.run(resumed, str(tmp_path), axis, ranks=after) == [True] * after
    names = [f"rank-{rank}.safetensors" for rank in range(before)]
    assert sorted(os.listdir(tmp_path / "step-00000004")) == [INDEX, *names]


def one_rank_damages(group, folder):
    toy = Toy(group, fill=7.0)
    before = toy.held
    try:
        Checkpoints(folder, toy).load(os.path.join(folder, "step-00000004"))
    except CedarError as error:
        return str(error), toy.held == before


def test_damage_that_one_rank_sees_is_told_on_all_and_nothing_is_changed(crew, tmp_path):
    """A rank that continued alone would wait for the others forever."""
    saved(Group(), str(tmp_path), 0)
    path = tmp_path / "step-00000004" / "rank-0.safetensors"
    data = bytearray(path.read_bytes())
    at = data.index(WHOLE[9].add(4).numpy().tobytes())  # the last row: the second rank reads it
    data[at] ^= 1
    path.write_bytes(data)
    for said, same in crew.run(one_rank_damages, str(tmp_path), ranks=2):
        assert "step-00000004 is damaged: the tensor 'slice' in rank-0.safetensors does not match its hash" in said
        assert same


def test_the_newest_whole_one_is_taken_and_damaged_ones_are_named(tmp_path, capsys):
    saved(Group(), str(tmp_path), 0, steps=(2, 4, 6, 8))
    (tmp_path / "step-00000008" / INDEX).write_bytes(b"{")
    data = bytearray((tmp_path / "step-00000006" / "rank-0.safetensors").read_bytes())
    data[-1] ^= 64
    (tmp_path / "step-00000006" / "rank-0.safetensors").write_bytes(data)
    (tmp_path / "step-00000009.part").mkdir()
    assert newest(str(tmp_path)).endswith("step-00000006")  # its index is whole
    assert newest(str(tmp_path), thorough=True).endswith("step-00000004")
    capsys.readouterr()
    assert resumed(Group(), str(tmp_path), 0)
    told = capsys.readouterr().err
    assert "step-00000008/index.json cannot be read: it is truncated" in told
    assert "step-00000006 is damaged: the tensor" in told
    assert told.count("an older checkpoint is used") == 2
    for name in ("step-00000002", "step-00000004"):
        (tmp_path / name / INDEX).write_bytes(b"{")
    with pytest.raises(Damaged):  # not a new run in silence
        Checkpoints(str(tmp_path), Toy()).resume()


def test_a_damaged_checkpoint_is_renamed_so_that_new_ones_are_kept(tmp_path, capsys):
    """With keep=1, every new checkpoint was removed at once: the damaged one has a later step."""
    saved(Group(), str(tmp_path), 0, steps=(4, 8))
    (tmp_path / "step-00000008" / INDEX).write_bytes(b"{")
    toy = Toy()
    files = Checkpoints(str(tmp_path), toy, keep=1)
    files.resume()
    assert f"renamed {tmp_path}/step-00000008 to {tmp_path}/step-00000008.damaged" in capsys.readouterr().err
    toy.fill(5)
    files.save()
    assert sorted(os.listdir(tmp_path)) == ["step-00000005", "step-00000008.damaged"]


@pytest.mark.parametrize("file", [INDEX, "rank-0.safetensors"])
def test_a_checkpoint_that_cannot_be_opened_is_not_renamed(tmp_path, monkeypatch, file):
    """It was taken for damaged, though only its permissions were wrong."""
    saved(Group(), str(tmp_path), 0, steps=(2, 4))

    def denies(opened):
        def open_(path, *args, **more):
            if str(path).endswith(os.path.join("step-00000004", file)):
                raise PermissionError(errno.EACCES, "Permission denied")
            return opened(path, *args, **more)

        return open_

    monkeypatch.setattr(os, "open", denies(os.open))
    monkeypatch.setattr(tensors, "open", denies(open), raising=False)
    for look in (lambda: newest(str(tmp_path), thorough=True), Checkpoints(str(tmp_path), Toy()).resume):
        with pytest.raises(Unreadable, match="step-00000004.*cannot be read: Permission denied"):
            look()
    assert sorted(os.listdir(tmp_path)) == ["step-00000002", "step-00000004"]
    assert newest(str(tmp_path)).endswith("step-00000002" if file == INDEX else "step-00000004")


def test_a_kill_while_it_saves_leaves_the_old_one(tmp_path, monkeypatch):
    """Whatever was written when it stopped: there is no index yet, and no name."""
    saved(Group(), str(tmp_path), 0)
    from cedar.trainers.common import checkpoint

    monkeypatch.setattr(checkpoint, "write_index", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        Checkpoints(str(tmp_path), Toy().fill(6)).save()
    assert newest(str(tmp_path)).endswith("step-00000004")


@pytest.mark.parametrize("name", [".metadata", "state.json"])
def test_the_former_format_is_refused_with_what_to_do_and_never_unpickled(tmp_path, name):
    path = tmp_path / "step-00000004"
    path.mkdir()
    tampered.Canary.path = str(tmp_path / "canary")
    (path / name).write_bytes(pickle.dumps(tampered.Canary()))
    for look in (lambda: newest(str(tmp_path)), Checkpoints(str(tmp_path), Toy()).resume):
        with pytest.raises(CedarError, match=r"earlier versions, which contains pickles.*(\n.*)*import_dcp\(OLD, NEW"):
            look()
    assert not (tmp_path / "canary").exists()


@pytest.mark.heavy
@pytest.mark.parametrize("make", tampered.MAKERS)
def test_tampered_checkpoints_are_refused_by_name_or_harmless(tmp_path, make):
    target = make(tmp_path / "run")
    found, wrong = tampered.attack(target, 60, 1, tmp_path)
    target.close()
    assert wrong == []
    assert found["refused"] > 40
