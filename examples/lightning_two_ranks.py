"""Lightning on two ranks: train, stop in the middle of an epoch, resume, and score every row once.

torchrun --nproc-per-node 2 examples/lightning_two_ranks.py FOLDER
"""

import sys
from typing import Any

import lightning
import torch
from torch import nn

import cedar

ROWS = cedar.from_items([{"id": i, "x": [i % 7, 1.0], "y": i % 2} for i in range(300)]).map(torch.tensor, "x")


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(2, 2)
        self.trained: list[int] = []
        self.scored: list[int] = []

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        self.trained += batch["id"].tolist()
        return nn.functional.cross_entropy(self.line(batch["x"].float()), batch["y"].long())

    def validation_step(self, batch: dict[str, torch.Tensor]) -> None:
        self.scored += batch["id"][batch["valid"]].tolist()  # the rest fills up the last step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self) -> cedar.Loader:  # made here, where the ranks are known
        return ROWS.shuffle(seed=1).batch(8, last="drop").loader(format="torch")

    def val_dataloader(self) -> cedar.Loader:
        return ROWS.take(101).batch(8, last="pad").loader(format="torch")


def fit(folder: str, checkpoint: str | None = None, **options: Any) -> Model:
    saves = lightning.pytorch.callbacks.ModelCheckpoint(folder, "{step}", every_n_train_steps=7, save_top_k=-1)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", callbacks=[saves], logger=False, enable_progress_bar=False,
        num_sanity_val_steps=0, enable_model_summary=False, use_distributed_sampler=False, **options,
    )  # fmt: skip
    model = Model()
    trainer.fit(model, ckpt_path=checkpoint)
    return model


def main(folder: str) -> None:
    fit(folder, max_steps=7)  # an epoch has 18 steps
    model = fit(folder, f"{folder}/step=7.ckpt", max_epochs=1)  # rank 0 saved its state: all ranks continue from it
    ranks: list[tuple[list[int], list[int]]] = [([], [])] * 2
    torch.distributed.all_gather_object(ranks, (model.trained, model.scored))
    if torch.distributed.get_rank() == 0:
        print("trained after the resume:", len({i for trained, _ in ranks for i in trained}), "rows")
        print("every row scored once:", sorted(i for _, scored in ranks for i in scored) == list(range(101)))


if __name__ == "__main__":
    main(sys.argv[1])
