"""Lightning's Trainer takes a loader where it takes a DataLoader, and resumes it in the middle of an epoch."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import cedar

torch: Any = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lightning: Any = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")


Module: Any = lightning.LightningModule
pytestmark = pytest.mark.filterwarnings("ignore")


def make_loader(**options: Any) -> cedar.Loader:
    rows = [{"x": [float(i), 1.0], "y": float(i % 2)} for i in range(16)]
    return cedar.from_items(rows).map(torch.tensor, "x").shuffle(seed=5).batch(4).loader(format="torch", **options)


class Model(Module):  # type: ignore[misc]
    """A line; it remembers the rows it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(2, 1)
        self.seen: list[list[int]] = []
        self.validated = 0

    def training_step(self, batch: dict[str, Any], index: int) -> Any:
        self.seen.append(batch["x"][:, 0].int().tolist())
        assert index == (len(self.seen) - 1 + getattr(self, "first", 0)) % 4
        return torch.nn.functional.mse_loss(self.line(batch["x"] / 16)[:, 0], batch["y"].float())

    def validation_step(self, batch: dict[str, Any], index: int) -> None:
        self.validated += len(batch["y"])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(folder: Path, **options: Any) -> Any:
    saves = lightning.callbacks.ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1)
    return lightning.Trainer(
        max_epochs=3, accelerator="cpu", callbacks=[saves], logger=False, enable_progress_bar=False,
        enable_model_summary=False, **options,
    )  # fmt: skip


def expected() -> list[list[int]]:
    loader = make_loader(executor="inline")
    return [batch["x"][:, 0].int().tolist() for _ in range(3) for batch in loader]


def test_three_epochs_and_a_resume_from_any_step(tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole = Model()
    trainer(tmp_path).fit(whole, make_loader(), make_loader())
    assert whole.seen == expected()
    assert whole.validated == 3 * 16 + 2 * 4  # two batches to try it, then every epoch
    for step in (3, 4, 9):
        again = Model()
        again.first = step
        trainer(tmp_path / "again").fit(again, make_loader(), ckpt_path=tmp_path / f"step={step}.ckpt")
        assert again.seen == whole.seen[step:], step
        assert torch.equal(again.line.weight, whole.line.weight)
