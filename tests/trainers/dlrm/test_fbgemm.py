"""Tables of fbgemm: those of torch where it loads and does what is asked; told what to install where it does not."""

import numpy as np
import pytest
import torch

from cedar.core.errors import CedarError
from cedar.trainers.common.group import Group
from cedar.trainers.dlrm import fbgemm
from cedar.trainers.dlrm.fbgemm import FbgemmTables
from cedar.trainers.dlrm.tables import TorchTables
from cedar.trainers.dlrm.trainer import Trainer
from tests.trainers.dlrm.toy_bags import TABLES, bags_of
from tests.trainers.dlrm.toy_clicks import options


@pytest.mark.parametrize("rule", ["rowwise_adagrad", "sgd"])
def test_fbgemm_does_what_torch_does(rule):
    pytest.importorskip("fbgemm_gpu", reason="fbgemm is not installed")
    if fbgemm.module_or_reason()[0] is None:
        pytest.skip(fbgemm.module_or_reason()[1])
    names = ("users", "items", "items")
    torchs = TorchTables(TABLES, 4, rule=rule, seed=1)
    theirs = FbgemmTables(TABLES, 4, rule=rule, seed=1)
    assert torchs.state().keys() == theirs.state().keys()
    rng = np.random.default_rng(0)
    for step in range(1, 6):
        lists = [
            [rng.integers(0, rows, rng.integers(0, 5)).tolist() for _ in range(n)]
            for rows, n in ((5, 7), (9, 3), (9, 0))
        ]
        results = []
        for tables in (torchs, theirs):
            tables.begin(0.1 / step, step)
            found = tables.lookup([bags_of(name, each) for name, each in zip(names, lists, strict=True)])
            sum((part**2).sum() * (at + 1) for at, part in enumerate(found)).backward()
            tables.update()
            results.append(torch.cat(found).detach())
        assert torch.allclose(*results, atol=1e-6)
    for name, value in torchs.state().items():
        assert torch.allclose(value, theirs.state()[name], atol=1e-6), name


def test_versions_that_do_not_fit_are_told_with_what_to_install(monkeypatch):
    monkeypatch.setattr(fbgemm, "_installed", lambda: "1.6.0")
    monkeypatch.setattr(torch, "__version__", "2.13.0+cpu")
    fbgemm.module_or_reason.cache_clear()
    try:
        with pytest.raises(CedarError) as failed:
            fbgemm.module()
    finally:
        fbgemm.module_or_reason.cache_clear()
    assert "fbgemm 1.6.0 was not built for torch 2.13.0" in str(failed.value)
    assert "pip install torch==2.13.0 fbgemm-gpu-cpu==1.8.0" in str(failed.value)


def test_a_missing_fbgemm_is_told_with_what_to_install_where_it_is_asked_for(log, monkeypatch):
    monkeypatch.setattr(fbgemm, "_installed", lambda: None)
    fbgemm.module_or_reason.cache_clear()
    try:
        with pytest.raises(CedarError, match=r"pip install torch==.* fbgemm-gpu-cpu=="):
            Trainer(options(log, tables={"backend": "fbgemm"}), Group())
        trainer = Trainer(options(log, tables={"backend": "auto"}), Group())
    finally:
        fbgemm.module_or_reason.cache_clear()
    assert trainer.notes == ["tables: torch (fbgemm is not installed)"]
    trainer.close()


def test_what_fbgemm_cannot_do_is_done_by_torch_and_told(log):
    pytest.importorskip("fbgemm_gpu", reason="fbgemm is not installed")
    trainer = Trainer(options(log, tables={"backend": "fbgemm", "rule": "adam"}), Group())
    assert trainer.notes == ["tables: torch (fbgemm has no adam on the CPU)"]
    trainer.close()
