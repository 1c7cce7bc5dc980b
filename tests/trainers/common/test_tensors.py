"""Files of tensors: every bit of them counts, and an index cannot lead elsewhere."""

import os
from pathlib import Path

import pytest
import torch

from benchmarks import tampered_checkpoints as tampered
from cedar.core.errors import CedarError
from cedar.trainers.common.checkpoint import INDEX, Checkpoints, read_index
from cedar.trainers.common.files import Damaged, read_sealed, write_sealed
from cedar.trainers.common.group import Group
from tests.trainers.common.toy_checkpoints import Toy, saved


def test_tensors_of_another_shape_are_a_misfit_and_no_damage(tmp_path):
    saved(Group(), str(tmp_path), 0)
    toy = Toy()
    toy.alike = torch.zeros(4, dtype=torch.float32)
    with pytest.raises(CedarError, match=r"alike is bfloat16 \[3\], but float32 \[4\] in this model") as error:
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
        with pytest.raises(Damaged, match="has invalid tensor entries"):
            read_index(os.path.dirname(path))
    write_sealed(path, {**good, "tensors": [good["tensors"][0] | {"shape": [5, 6]}, *good["tensors"][1:]]})
    with pytest.raises(Damaged, match="step-00000004 is damaged"):
        Checkpoints(str(tmp_path), Toy()).resume()


@pytest.mark.heavy
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
