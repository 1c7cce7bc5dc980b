"""Hugging Face's Trainer on two ranks: train, stop in the middle of an epoch, resume, and score every row once.

torchrun --nproc-per-node 2 examples/transformers_two_ranks.py FOLDER
"""

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from accelerate.utils import gather_object
from torch import nn

import cedar

ROWS = cedar.from_items([{"id": i, "x": [i % 7, 1.0], "y": i % 2} for i in range(300)]).map(torch.tensor, "x")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(2, 2)
        self.seen: list[int] = []

    def forward(self, id: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen += id.tolist()
        return {"loss": nn.functional.cross_entropy(self.line(x.float()), y.long())}


class Epochs:
    """The loader as Trainer needs it: set_epoch keeps a position that was loaded."""

    def __init__(self, loader: cedar.Loader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        self.loader.sampler.set_epoch(epoch)


class Trainer(transformers.Trainer):
    """Keeps the loader's state next to each checkpoint: that of one rank is enough."""

    def __init__(self, folder: str, **options: Any) -> None:
        arguments = transformers.TrainingArguments(
            folder, save_steps=7, report_to=[], use_cpu=True, disable_tqdm=True, remove_unused_columns=False,
            ignore_data_skip=True, logging_strategy="no", **options,
        )  # fmt: skip
        self.net = Model()
        super().__init__(self.net, arguments, callbacks=[Saves(self)])
        self.loader = ROWS.shuffle(seed=1).batch(8, last="drop").loader(format="torch")

    def get_train_dataloader(self) -> Any:
        return Epochs(self.loader)

    def resume(self, checkpoint: str) -> None:
        with open(f"{checkpoint}/loader.json", encoding="utf-8") as file:
            self.loader.load_state_dict(json.load(file))
        self.train(checkpoint)


class Saves(transformers.TrainerCallback):
    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            with open(f"{args.output_dir}/checkpoint-{state.global_step}/loader.json", "w", encoding="utf-8") as file:
                json.dump(self.trainer.loader.state_dict(), file)


def main(folder: str) -> None:
    first = Trainer(folder, max_steps=7)  # an epoch has 18 steps
    first.train()
    again = Trainer(folder, num_train_epochs=1)
    again.resume(os.path.join(folder, "checkpoint-7"))
    trained = gather_object(first.net.seen + again.net.seen)
    again.net.seen = []
    for batch in ROWS.take(101).batch(8, last="keep").loader(format="torch"):  # nothing is gathered in this loop
        again.net(**batch)
    scored = gather_object(again.net.seen)
    if again.is_world_process_zero():
        print("trained:", len(trained), "rows,", len(set(trained)), "different")
        print("every row scored once:", sorted(scored) == list(range(101)))


if __name__ == "__main__":
    main(sys.argv[1])
