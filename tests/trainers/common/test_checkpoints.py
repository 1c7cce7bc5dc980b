"""The format of checkpoints: read by any number of ranks, whole or refused by name, never unpickled."""

import os
import pickle
import shutil
import warnings
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from benchmarks import tampered_checkpoints as tampered
from cedar.core.errors import CedarError
from cedar.trainers.common.checkpoint import INDEX, Checkpoints, newest, read_index
from cedar.trainers.common.dcp import export_dcp, import_dcp
from cedar.trainers.common.files import Damaged, read_sealed, write_sealed
from cedar.trainers.common.group import Group
from cedar.trainers.common.tensors import Part

WHOLE = torch.arange(60.0).view(10, 6)


class Toy:
    """A trainer that holds a slice of one tensor, and all of two others."""

    files: ClassVar[dict[str, str]] = {}
    device = torch.device("cpu")

    def __init__(self, group=None, axis=0, fill=0.0):
        self.group, self.step, self.axis, self.told = group or Group(), 0, axis, None
        bounds = [WHOLE.shape[axis] * at // self.group.size for at in (self.group.rank, self.group.rank + 1)]
        self.mine = slice(*bounds)
        self.slice = torch.zeros_like(self._own(WHOLE)) + fill
        self.alike, self.count = torch.full((3,), fill, dtype=torch.bfloat16), torch.tensor(int(fill))

    def _own(self, whole):
        return whole[self.mine] if self.axis == 0 else whole[:, self.mine]

    def fill(self, step):
        self.step = step
        self.slice += self._own(WHOLE) + step
        self.alike += step
        self.count += step
        return self

    def state_dict(self):
        return {"step": self.step}

    def parts(self):
        start = (self.mine.start, 0) if self.axis == 0 else (0, self.mine.start)
        return {
            "slice": Part(self.slice, (10, 6), start), "alike": Part(self.alike, alike=True),
            "count": Part(self.count, alike=True),
        }  # fmt: skip

    def check(self, state, path):
        pass

    def load_state_dict(self, state):
        self.step = state["step"]

    def loaded(self):
        self.told = "loaded"

    @property
    def held(self):
        return self.step, self.slice.tolist(), self.alike.tolist(), int(self.count)


def saved(group, folder, axis, steps=(4,)):
    toy = Toy(group, axis)
    for step in steps:
        toy = Toy(group, axis).fill(step)
        Checkpoints(folder, toy, keep=9).save()


def resumed(group, folder, axis):
    toy = Toy(group, axis, fill=7.0)
    Checkpoints(folder, toy).resume()
    return toy.held == Toy(group, axis).fill(4).held and toy.told == "loaded"


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
    """A rank that went on alone would wait for the others for ever."""
    saved(Group(), str(tmp_path), 0)
    path = tmp_path / "step-00000004" / "rank-0.safetensors"
    data = bytearray(path.read_bytes())
    at = data.index(WHOLE[9].add(4).numpy().tobytes())  # the last row: the second rank reads it
    data[at] ^= 1
    path.write_bytes(data)
    for said, same in crew.run(one_rank_damages, str(tmp_path), ranks=2):
        assert "step-00000004 is damaged: the tensor 'slice' in rank-0.safetensors has another hash" in said
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
    assert "step-00000008/index.json cannot be read: it is cut off" in told
    assert "step-00000006 is damaged: the tensor" in told
    assert told.count("the checkpoint before it is taken") == 2
    shutil.rmtree(tmp_path / "step-00000004")
    shutil.rmtree(tmp_path / "step-00000002")
    with pytest.raises(Damaged):  # not a new run in silence
        Checkpoints(str(tmp_path), Toy()).resume()


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
        with pytest.raises(
            CedarError, match=r"earlier versions wrote, which holds pickles.*(\n.*)*import_dcp\(OLD, NEW"
        ):
            look()
    assert not (tmp_path / "canary").exists()


def test_torch_s_own_format_is_written_and_read_only_by_who_trusts_it(tmp_path):
    saved(Group(), str(tmp_path / "ours"), 0)
    there = str(tmp_path / "dcp")
    export_dcp(str(tmp_path / "ours" / "step-00000004"), there)
    import torch.distributed.checkpoint as dcp

    read = {"slice": torch.zeros(10, 6)}
    with warnings.catch_warnings(action="ignore"):
        dcp.load(read, checkpoint_id=there, no_dist=True)
    assert torch.equal(read["slice"], WHOLE + 4)
    again = str(tmp_path / "again" / "step-00000004")
    for trust in ({}, {"trust": "yes"}):
        with pytest.raises(CedarError, match="unpickles a file, which may run code"):
            import_dcp(there, again, **trust)
    mine = tmp_path / "again" / "step-00000004.part"
    mine.mkdir(parents=True)
    with pytest.raises(CedarError, match="step-00000004.part is there already"):
        import_dcp(there, again, trust=True)
    mine.rmdir()  # it is still there
    import_dcp(there, again, trust=True)
    assert resumed(Group(), str(tmp_path / "again"), 0)


def test_tensors_of_another_shape_are_a_misfit_and_no_damage(tmp_path):
    saved(Group(), str(tmp_path), 0)
    toy = Toy()
    toy.alike = torch.zeros(4, dtype=torch.float32)
    with pytest.raises(CedarError, match=r"alike is bfloat16 \[3\], and float32 \[4\] here") as error:
        Checkpoints(str(tmp_path), toy).resume()
    assert not isinstance(error.value, Damaged)


def test_an_index_cannot_name_files_elsewhere_or_values_that_are_not_there(tmp_path):
    saved(Group(), str(tmp_path), 0)
    path = str(tmp_path / "step-00000004" / INDEX)
    good = read_sealed(path)
    for key, value in (
        ("file", "../rank-0.safetensors"),
        ("file", "/etc/passwd"),
        ("start", [9, 0]),
        ("shape", [2, -1]),
    ):
        forged = {**good, "tensors": [good["tensors"][0] | {key: value}, *good["tensors"][1:]]}
        write_sealed(path, forged)
        with pytest.raises(Damaged, match="does not tell of its tensors"):
            read_index(os.path.dirname(path))
    write_sealed(path, {**good, "tensors": [good["tensors"][0] | {"shape": [5, 6]}, *good["tensors"][1:]]})
    with pytest.raises(Damaged, match="step-00000004 is damaged"):
        Checkpoints(str(tmp_path), Toy()).resume()


@pytest.mark.parametrize("make", tampered.MAKERS)
def test_tampered_checkpoints_are_refused_by_name_or_harmless(tmp_path, make):
    target = make(tmp_path / "run")
    found, wrong = tampered.attack(target, 60, 1, tmp_path)
    target.close()
    assert wrong == []
    assert found["refused"] > 40


def test_a_flipped_bit_in_weights_does_not_train_on(tmp_path):
    """Each byte of a file of tensors counts: hashes cover all of it but its padding."""
    target = tampered.resilient(tmp_path / "run")
    target.load(target.path)
    good = target.state()
    file = next(Path(target.path).glob("*.safetensors"))
    data = file.read_bytes()
    for at in range(0, len(data), 97):
        file.write_bytes(data[:at] + bytes([data[at] ^ 128]) + data[at + 1 :])
        try:
            target.load(target.path)
        except CedarError:
            continue
        assert target.state() == good
