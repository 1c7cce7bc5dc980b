"""Train with Lightning, stop within an epoch, and resume from its checkpoint with the next batch."""

import tempfile
from typing import Any

import lightning
import torch

import cedar

rows = cedar.from_items([{"id": i, "x": float(i % 10), "y": float(i % 10 > 4)} for i in range(160)])
batches = rows.shuffle(seed=1).batch(16)
folder = tempfile.mkdtemp()


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[int] = []

    def training_step(self, batch: dict[str, torch.Tensor], step: int) -> torch.Tensor:
        self.seen += batch["id"].tolist()
        predicted = self.layer(batch["x"].float()[:, None])[:, 0]
        return torch.nn.functional.mse_loss(predicted, batch["y"].float())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 0.1)


def fit(steps: int, checkpoint: str | None = None) -> list[int]:
    quiet: dict[str, Any] = {
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
    }
    saves = lightning.pytorch.callbacks.ModelCheckpoint(folder, "{step}", every_n_train_steps=4)
    trainer, model = lightning.Trainer(max_steps=steps, callbacks=[saves], logger=False, **quiet), Model()
    trainer.fit(model, batches.loader(format="torch"), ckpt_path=checkpoint)
    return model.seen


first, rest = fit(4), fit(10, f"{folder}/step=4.ckpt")
print(len(first), "rows, then", len(rest))
assert sorted(first + rest) == list(range(160))
