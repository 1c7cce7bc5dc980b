"""Accelerate takes a loader as it is: ``prepare`` leaves it alone, checkpoints hold its state."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import cedar

torch: Any = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    accelerate: Any = pytest.importorskip("accelerate", reason="accelerate is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")


def make_loader(device: Any) -> cedar.Loader:
    return cedar.from_items([{"x": float(i)} for i in range(32)]).shuffle(seed=5).batch(4).loader(device=device)


class Job:
    """A training script, as Accelerate's own pages write it."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(0)
        self.accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        loader, model = make_loader(self.accelerator.device), torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(model, optimizer, loader)
        assert self.loader is loader
        self.accelerator.register_for_checkpointing(self.loader)
        self.folder = folder
        self.seen: list[list[float]] = []

    def run(self, save_at: int | None = None) -> None:
        while self.loader.epoch < 3:
            for batch in self.loader:
                self.seen.append(batch["x"].tolist())
                with self.accelerator.accumulate(self.model):
                    self.accelerator.backward(self.model(batch["x"][:, None].float()).mean())
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                if len(self.seen) == save_at:
                    self.accelerator.save_state(str(self.folder))


def test_three_epochs_and_an_exact_resume(tmp_path: Path) -> None:
    whole = Job(tmp_path)
    whole.run(save_at=10)
    plain = make_loader("cpu")
    assert whole.seen == [batch["x"].tolist() for _ in range(3) for batch in plain]
    again = Job(tmp_path)
    again.accelerator.load_state(str(tmp_path))
    again.run()
    assert again.seen == whole.seen[10:]
    assert torch.equal(again.model.weight, whole.model.weight)
