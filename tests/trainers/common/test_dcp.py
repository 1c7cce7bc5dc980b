"""Checkpoints of torch.distributed: written from ours, and read only by who says that they trust them."""

import warnings

import pytest
import torch

from cedar.core.errors import CedarError
from cedar.trainers.common.dcp import export_dcp, import_dcp
from cedar.trainers.common.group import Group
from tests.trainers.common.toy_checkpoints import WHOLE, resumed, saved


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
    with pytest.raises(CedarError, match="step-00000004.part already exists"):
        import_dcp(there, again, trust=True)
    mine.rmdir()  # it is still there
    import_dcp(there, again, trust=True)
    assert resumed(Group(), str(tmp_path / "again"), 0)
